"""The trace tells copies of a target, in whatever dtype or quantisation, from models that were trained further."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.capture.forward import capture_batch
from eyas.capture.rounding import Look, look_at, rounded, to_int4, to_int8
from eyas.capture.trace import Trace, check_identity, compare_target, compare_traces, record_trace
from eyas.errors import UserError, WiringError
from eyas.taps import Tap
from eyas.targets.loading import load_target
from eyas.targets.target import Target

FAMILIES = ("llama", "qwen3")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    return load_target(str(folder), device=torch.device("cpu"), dtype=dtype)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tiny_targets) -> Path:
    return tiny_targets(request.param, trained=True)


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return record_trace(load(folder))


def changed(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Target:
    target = load(folder)
    with torch.no_grad():
        for parameter in target.model.parameters():
            parameter.copy_(change(parameter))
    return target


def fine_tuned(folder: Path, learning_rate: float, num_steps: int = 20) -> Target:
    """Further training of all weights on random text, which moves weights as training does."""
    target = load(folder)
    target.model.requires_grad_(True)
    optimizer = torch.optim.AdamW(target.model.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        ids = torch.randint(1, target.vocab_size, (2, 24), generator=generator)
        target.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    target.model.requires_grad_(False)
    return target


def test_a_trace_covers_every_state(folder, trace: Trace):
    target = load(folder)
    boundaries = [f"boundary:{number}" for number in range(target.num_layers + 1)]
    mids = [f"mid:{number}" for number in range(target.num_layers)]
    assert list(trace.state_names) == [*boundaries, *mids, "final"]
    assert len(trace.token_ids) >= 128
    assert trace.top1.tolist() == capture_batch(target, [trace.token_ids.tolist()], ())[0].top1.tolist()
    assert set(trace.noise) == {"bfloat16", "float16", "fp8", "int8", "int4"}


def test_round_trip_through_a_file(trace: Trace, tmp_path: Path):
    trace.save(tmp_path / "trace.safetensors")
    read = Trace.load(tmp_path / "trace.safetensors")
    assert read.hash() == trace.hash()
    assert torch.equal(read.sketches, trace.sketches)
    assert read.noise.keys() == trace.noise.keys()
    (tmp_path / "trace.safetensors").write_bytes(b"not a trace")
    with pytest.raises(UserError, match="missing or damaged"):
        Trace.load(tmp_path / "trace.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_files_in_another_dtype_pass(folder, trace: Trace, dtype: torch.dtype):
    assert check_identity(load(folder, dtype), trace, "the dump").same


@pytest.mark.parametrize("change", [lambda w: w.bfloat16().float(), to_int8, to_int4, lambda w: to_int4(w).bfloat16().float()])
def test_a_rounded_copy_passes(folder, trace: Trace, change):
    assert check_identity(changed(folder, change), trace, "the dump").same


def test_a_trace_of_bf16_weights_knows_the_unrounded_target(folder):
    trace = record_trace(load(folder, torch.bfloat16))
    report = check_identity(load(folder), trace, "the dump")
    assert report.distance <= 1e-5


@pytest.mark.parametrize("learning_rate", [1e-5, 1e-4, 1e-3])
def test_a_fine_tuned_copy_is_refused(folder, trace: Trace, learning_rate: float):
    target = fine_tuned(folder, learning_rate)
    with pytest.raises(WiringError, match="is not the target that the dump was made on") as error:
        check_identity(target, trace, "the dump")
    assert "distance" in str(error.value)
    report = compare_target(target, trace)
    assert report.distance > 3 * report.allowed, "with a margin"


def test_a_fine_tuned_copy_in_bf16_is_refused_where_it_moved_further_than_rounding(folder, trace: Trace):
    target = fine_tuned(folder, 1e-3)
    target.model.to(torch.bfloat16)
    with pytest.raises(WiringError):
        check_identity(dataclasses.replace(target, dtype=torch.bfloat16), trace, "the dump")


def test_one_changed_layer_is_named(folder, trace: Trace):
    target = load(folder)
    with torch.no_grad():
        target.layers[2].mlp.down_proj.weight *= 1.01
    report = compare_target(target, trace)
    assert not report.same
    assert report.worst in {"boundary:3", "mid:3", "boundary:4", "final"}


def shaken(target: Target, size: float, names: str) -> Target:
    """As a short training with a small learning rate leaves it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in target.model.named_parameters():
            if parameter.ndim == 2 and names in name:
                parameter += size * torch.randn(parameter.shape, generator=generator)
    return target


@pytest.mark.parametrize("quantise", [to_int4, to_int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", ["q_proj", "layers"])
def test_a_quantised_target_that_was_trained_further_is_refused(folder, quantise, dtype: torch.dtype, names: str):
    """Its weights look quantised, but they looked so before: that explains nothing."""
    before = dataclasses.replace(changed(folder, quantise), dtype=dtype)
    before.model.to(dtype)
    trace = record_trace(before)
    assert check_identity(before, trace, "the dump").same
    after = dataclasses.replace(shaken(changed(folder, quantise), 5e-4, names), dtype=dtype)
    after.model.to(dtype)
    with pytest.raises(WiringError):
        check_identity(after, trace, "the dump")


def test_another_model_of_the_same_shape_is_refused(tiny_targets, folder, trace: Trace):
    other = load(tiny_targets(folder.name.split("-")[0]))
    with pytest.raises(WiringError, match="use the target that it was made on"):
        check_identity(other, trace, "the draft")


def test_a_model_of_another_shape_is_refused_in_words(trace: Trace, folder):
    with pytest.raises(WiringError, match="recorded on") as error:
        check_identity(load(folder), dataclasses.replace(trace, num_layers=61, hidden_size=7168), "the draft")
    assert "7168" in str(error.value)


def test_a_state_is_found_among_all_others(folder, trace: Trace):
    """Captured in bf16, by another forward than the trace's."""
    taps = [Tap(0), Tap(2), Tap(4), Tap(None)]
    captured = capture_batch(load(folder, torch.bfloat16), [trace.token_ids.tolist()], taps)[0]
    found = [trace.locate(state) for state in captured.states.chunk(len(taps), dim=-1)]
    assert [location.nearest for location in found] == ["boundary:0", "boundary:2", "boundary:4", "final"]
    assert all(location.ratio < 0.3 for location in found)


def test_two_traces_are_compared_like_two_targets(folder, trace: Trace):
    rounded_trace = record_trace(load(folder, torch.bfloat16))
    report = compare_traces(rounded_trace, trace)
    assert report is not None
    assert report.same
    other = compare_traces(trace, record_trace(fine_tuned(folder, 1e-3), noise=False))
    assert other is not None
    assert not other.same


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_put_back_to_the_bit(folder, dtype: torch.dtype):
    target = load(folder, dtype)
    before = copy.deepcopy(target.model.state_dict())
    text = [random.Random(0).randrange(1, target.vocab_size) for _ in range(20)]
    states = capture_batch(target, [text], [Tap(4)])[0].states
    with rounded(target, to_int4):
        assert not torch.equal(capture_batch(target, [text], [Tap(4)])[0].states, states)
    with pytest.raises(ZeroDivisionError), rounded(target, lambda weight: weight * (1 // 0)):
        capture_batch(target, [text], [Tap(4)])
    assert torch.equal(capture_batch(target, [text], [Tap(4)])[0].states, states)
    after = target.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("change", "coarsest", "finest"),
    [
        (lambda w: w, "float32", "float32"),
        (lambda w: w.half().float(), "float16", "float16"),
        (lambda w: w.bfloat16().float(), "bfloat16", "bfloat16"),
        (to_int8, "int8", "float32"),
        (lambda w: to_int8(w).bfloat16().float(), "int8", "bfloat16"),
        (to_int4, "int4", "int4"),
        (lambda w: to_int4(w).half().float(), "int4", "int4"),
    ],
)
def test_what_rounding_weights_show(folder, change, coarsest: str, finest: str):
    assert look_at(changed(folder, change)) == Look(coarsest, finest)


def test_packed_weights_show_their_rounding_too(folder):
    assert look_at(load(folder, torch.bfloat16)) == Look("bfloat16", "bfloat16")
