"""Every layout gives the states of one process: tensor parallelism, context parallelism, and both at once.

One launch of torchrun for 2 ranks and one for 4 run all families; here their files are compared with one process.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.capture.check import check_captures
from eyas.capture.fingerprint import Trace
from eyas.capture.reference import Reference, reference_of_trace
from eyas.capture.trace import record_trace
from eyas.doctor.replay.dump_slots import check_prefill
from eyas.formats.dumps.states import read_capture
from eyas.targets.loading import load_config, load_target
from eyas.targets.target import Target
from layouts import probe, seeds
from layouts.texts import texts

HERE = Path(__file__).parent / "layouts"
FAMILIES = ("llama", "qwen3", "gemma3_text", "qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v32", "kimi_k25")
ROUNDED = ("llama", "gemma3_text")
SEEDED = ("deepseek_v32", "kimi_k25")
LAYOUTS = {
    2: [[2, 1, "zig-zag"], [1, 2, "zig-zag"], [1, 2, "round-robin"]],
    4: [[4, 1, "zig-zag"], [1, 4, "zig-zag"], [1, 4, "round-robin"], [2, 2, "zig-zag"]],
}
NAMES = [f"tp{tp}-cp{cp}-{order}" for ranks in LAYOUTS.values() for tp, cp, order in ranks]
MAX_ERROR = 1e-5
PEAK_TOKENS = 296
DENSE = ("llama", "qwen3", "gemma3_text")
SCORED = ("gpt_oss", "deepseek_v3", "deepseek_v32", "kimi_k25")  # one process holds scores of theirs, too; else it needs no mask even
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Alone:
    """One process."""

    target: Target
    found: dict[str, torch.Tensor]
    decoded: list[list[int]]


@pytest.fixture(scope="session")
def launched(shared_folder: Path, tiny_targets) -> Path:
    """The folder of what all ranks of all layouts wrote."""
    out = shared_folder / "layouts"
    folders = {family: str(tiny_targets(family)) for family in FAMILIES}
    with open(out.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            work = out.with_suffix(".work")
            work.mkdir()
            traces = {family: record_trace(load(folders[family]), noise=False) for family in SEEDED}
            for family, trace in traces.items():
                trace.save(work / f"{family}.trace")
            seeded = {family: trace.token_ids.tolist()[: seeds.LENGTH] for family, trace in traces.items()}
            for ranks, layouts in LAYOUTS.items():
                launch(ranks, {"layouts": layouts, "targets": folders, "seeded": seeded, "out": str(work)}, work)
            work.rename(out)
    return out


def launch(ranks: int, request: dict[str, Any], work: Path) -> None:
    path = work / f"request-{ranks}.json"
    path.write_text(json.dumps(request))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), HERE / "worker.py", path],
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[2] / 'src'}:{HERE.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def load(folder: str) -> Target:
    return load_target(folder, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module", params=FAMILIES)
def alone(request, tiny_targets) -> Alone:
    target = load(str(tiny_targets(request.param)))
    batch = texts(target.vocab_size)
    found = probe.capture(target, batch)
    found["picked"] = probe.picked_sets(target, batch[0])
    found["drafted"] = probe.draft_tokens(target, found["states"], batch[0])
    return Alone(target, found, probe.decode(target, [text[:9] for text in batch[:2]]))


def row_error(found: torch.Tensor, wanted: torch.Tensor, width: int) -> torch.Tensor:
    """Per row and state: [N, states]."""
    found, wanted = (part.view(len(part), -1, width) for part in (found, wanted))
    return (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_a_layout_gives_the_states_of_one_process(launched: Path, alone: Alone, name: str):
    family, width = alone.target.config.model_type, alone.target.hidden_size
    stem = f"{alone.target.name.removesuffix('-random-0')}-{name}"
    got, facts = load_file(launched / f"{stem}.safetensors"), json.loads((launched / f"{stem}.json").read_text())
    for packing in ("", "packed_"):
        assert row_error(got[f"{packing}states"], alone.found["states"], width).max() <= MAX_ERROR, (family, packing)
        assert row_error(got[f"{packing}final"], alone.found["final"], width).max() <= MAX_ERROR, (family, packing)
        assert torch.equal(got[f"{packing}top1"], alone.found["top1"])
    assert torch.equal(got["picked"], alone.found["picked"]), "the indexer picks the same positions"
    assert torch.equal(got["drafted"], alone.found["drafted"]), "a draft proposes the same tokens"
    for what, hashes in facts["hashes"].items():
        assert len(set(hashes)) == 1, f"ranks hold different {what}"
    check_layout_ran(alone, facts, name)


def check_layout_ran(alone: Alone, facts: dict[str, Any], name: str) -> None:
    """The same states prove nothing where nothing was split."""
    tp, cp = (int(part[2:]) for part in name.split("-")[:2])
    whole = max(map(len, texts(alone.target.vocab_size)))
    padded = -(-whole // (2 * cp)) * 2 * cp
    assert facts["rows_seen"] == (whole if cp == 1 else padded // cp)
    if cp > 1:
        assert "context parallelism is for prefill" in facts["refused"]
    else:
        assert facts["decoded"] == alone.decoded
    if tp > 1:
        embedding = facts["embedding"]
        assert embedding["rows"] == alone.target.vocab_size // tp and embedding["placement"] == "(Shard(dim=0),)"
        assert sum(embedding["collectives"].values()) == 1 and "all_reduce" in next(iter(embedding["collectives"]))
        assert embedding["zero_rows"] == 0 and embedding["own_zero_rows"] > 0, "the sum put the other ranks' rows in"
        check_split(alone, set(facts["split"]), tp)


@pytest.fixture(scope="module", params=ROUNDED)
def one_by_one(request, tiny_targets) -> tuple[str, torch.Tensor, torch.Tensor, int]:
    """The states in fp32, and those in bf16 of one text at a time."""
    exact = load(str(tiny_targets(request.param)))
    rounded = load_target(str(tiny_targets(request.param)), device=CPU, dtype=torch.bfloat16)
    batch = texts(exact.vocab_size)
    found = torch.cat([probe.capture(rounded, [text])["states"] for text in batch]).float()
    return request.param, probe.capture(exact, batch)["states"], found, exact.hidden_size


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_in_bf16_a_layout_is_no_farther_from_fp32_than_one_text_alone(launched: Path, one_by_one, name: str):
    family, wanted, alone_in_bf16, width = one_by_one
    got = load_file(launched / f"{family}-{name}.safetensors")["bf16_states"].float()
    assert (row_error(got, wanted, width).mean(0) <= 1.5 * row_error(alone_in_bf16, wanted, width).mean(0)).all()


@pytest.mark.timeout(1200)
def test_scores_and_rows_shrink_with_the_ranks_and_gathered_keys_do_not(launched: Path, alone: Alone):
    measure = runpy.run_path(str(HERE.parents[2] / "benchmarks" / "context_parallel.py"))["measure"]
    peaks = {1: measure(alone.target, PEAK_TOKENS)}
    family = alone.target.name.removesuffix("-random-0")
    for cp in (2, 4):
        peaks[cp] = json.loads((launched / f"{family}-tp1-cp{cp}-zig-zag.json").read_text())["peak_bytes"]
        if family in SCORED:
            assert peaks[cp]["scores"] == pytest.approx(peaks[1]["scores"] / cp, rel=0.1)
    assert peaks[4]["scores"] == pytest.approx(peaks[2]["scores"] / 2, rel=0.1)
    assert peaks[4]["all"] < peaks[2]["all"] < peaks[1]["all"]
    if family in DENSE:  # two experts a token make of half of the rows as many as there are positions
        assert peaks[4]["rows"] == pytest.approx(peaks[2]["rows"] / 2, rel=0.1)
        assert peaks[4]["keys"] == peaks[2]["keys"] > 0, "what is gathered is whole on every rank"


def check_split(alone: Alone, split: set[str], tp: int) -> None:
    """What is wide is split, unless its heads cannot be dealt out."""
    config = alone.target.config
    mla = getattr(config, "kv_lora_rank", None) is not None
    heads_divide = mla or config.num_key_value_heads % tp == 0
    assert any("self_attn.o_proj" in name for name in split) == heads_divide
    assert any("lm_head" in name or "embed_tokens" in name for name in split)
    assert any("mlp" in name for name in split)
    if mla:
        assert {"kv_b_proj", "q_b_proj"} <= {name.split(".")[-2] for name in split}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_what_rank_0_does_alone_is_known_to_all(launched: Path, name: str):
    size = math.prod(int(part[2:]) for part in name.split("-")[:2])
    assert json.loads((launched / f"shared-{name}.json").read_text()) == {"refused": [1] * size, "answered": [10] * size}


@pytest.fixture(scope="module", params=SEEDED)
def reference(request, launched: Path) -> tuple[str, Reference]:
    trace = Trace.load(launched / f"{request.param}.trace")
    ids = trace.token_ids.tolist()[: seeds.LENGTH]
    return request.param, reference_of_trace(trace, [ids])


# By the seed: the verdicts on embed, layer:1 and layer:2, from all ranks' files.
VERDICTS = {
    "last_branch_not_reduced": ("right", "partial", "partial"),
    "embedding_not_reduced": ("embedding not reduced", "right", "right"),
    "rows_scattered": ("rows scattered",) * 3,
    "columns_scattered": ("columns scattered",) * 3,
    "not_gathered": ("rows scattered",) * 3,
    "not_reordered": ("rows permuted",) * 3,
    "split_before_embedding": ("rows scattered", "right", "right"),
    "active_in_decode": ("right", "rows differ from a position on", "rows differ from a position on"),
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in NAMES if "tp2-cp2" not in name])
def test_seeded_faults_are_named_by_the_trace_check(launched: Path, reference: tuple[str, Reference], name: str):
    family, known = reference
    tp, cp = (int(part[2:]) for part in name.split("-")[:2])
    for seed in seeds.TENSOR_PARALLEL if tp > 1 else seeds.CONTEXT_PARALLEL:
        paths = [launched / f"{family}-{name}.{seed.__name__}.{rank}.safetensors" for rank in range(tp * cp)]
        captures = [read_capture(path, known.hidden_size, len(seeds.TAPS), None)[0] for path in paths]
        report = check_captures(known, captures, seeds.TAPS)
        verdicts = tuple(slot.verdict for slot in report.slots)
        assert verdicts == VERDICTS[seed.__name__], (seed.__name__, [slot.text() for slot in report.slots])
        found = [slot.found for slot in report.slots]
        assert found == [str(tap) for tap in seeds.TAPS], seed.__name__


# What the doctor makes of the file that rank 0 wrote, as a dump.
CODES = {
    "not_gathered": "states-scattered",
    "not_reordered": "states-scattered",
    "split_before_embedding": "states-scattered",
    "active_in_decode": "context-lost",
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in NAMES if "tp1" in name])
def test_seeded_faults_of_context_parallelism_are_named_by_the_doctor(
    launched: Path, reference: tuple[str, Reference], tiny_targets, name: str
):
    family, known = reference
    target = SimpleNamespace(config=load_config(str(tiny_targets(family))).get_text_config(decoder=True))
    for seed in seeds.CONTEXT_PARALLEL:
        capture = read_capture(launched / f"{family}-{name}.{seed.__name__}.0.safetensors", known.hidden_size, len(seeds.TAPS), None)[0]
        slots = check_captures(known, [capture], seeds.TAPS).slots
        outcome = check_prefill(SimpleNamespace(loaded_target=target, slot_verdicts=slots))
        assert {fault.code for fault in outcome.faults} == {CODES[seed.__name__]}, (seed.__name__, [slot.text() for slot in slots])
        said = "has a sparse attention" if family == "deepseek_v32" else "has no sparse attention"
        assert all(said in item.text for item in outcome.evidence)
