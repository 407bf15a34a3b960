"""One dump a project, written by hand with that project's own keys (golden_dumps/make.py), read as that project means it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.formats.dumps import is_foreign_dump
from eyas.formats.dumps.detect import FORMATS
from eyas.formats.dumps.sample import ForeignSample
from eyas.formats.dumps.states import read_capture

GOLDEN = Path(__file__).parent / "golden_dumps"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
IDS, MASKS = ([5, 7, 11, 13, 17], [5, 19, 23]), ([0, 0, 1, 1, 1], [0, 1, 1])
LAST = 9


def format_name(name: str) -> str:
    return "speculators" if name == "speculators-fp8" else name


def read(name: str) -> list[ForeignSample]:
    fmt = FORMATS[format_name(name)]
    return [sample for file in fmt.files(GOLDEN / name) for sample in fmt.read(file)]


def wanted(text: int, slots: list[int]) -> torch.Tensor:
    """The numbers that make.py put there, [positions, slots, columns]."""
    places = range(len(IDS[text]))
    return torch.tensor([[[text * 100 + place * 10 + slot + column / 8 for column in range(4)] for slot in slots] for place in places])


def test_there_is_one_of_every_format() -> None:
    assert {format_name(name) for name in NAMES} == set(FORMATS)
    for name in NAMES:
        assert sum(path.stat().st_size for path in (GOLDEN / name).iterdir()) < 50_000


@pytest.mark.parametrize("name", NAMES)
def test_it_is_told_by_its_files(name: str) -> None:
    assert is_foreign_dump(GOLDEN / name) == format_name(name)
    one = next(path for path in sorted((GOLDEN / name).iterdir()) if path.suffix != ".json")
    assert is_foreign_dump(one) == (None if name == "automodel" else format_name(name)), "a shard alone lacks its manifest"


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_read_into_its_place(name: str) -> None:
    samples = read(name)
    assert len(samples) == len(IDS)
    for text, sample in enumerate(samples):
        tokens, mask = IDS[text], MASKS[text]
        assert sample.token_ids[1:].tolist() == tokens[1:]
        assert sample.first_token_missing == (name == "automodel")
        assert sample.first_token_missing or sample.token_ids[0] == tokens[0]
        has_mask = name not in ("speculators", "speculators-fp8", "vllm")
        assert (sample.loss_mask.int().tolist() if sample.loss_mask is not None else None) == (mask if has_mask else None)
        slots = [0, 1, 2, LAST] if name == "vllm" else [0, 1, 2]  # whether the last one is for labels, vLLM's files do not say
        exact = wanted(text, slots).bfloat16()
        if name == "speculators-fp8":
            assert torch.allclose(sample.states.float(), exact.float(), rtol=0.07, atol=0.25)
        else:
            assert torch.equal(sample.states, exact)
            assert sample.states.dtype == torch.bfloat16
        if name in ("vllm", "automodel"):
            assert sample.last is None
        else:
            assert sample.last is not None
            assert torch.allclose(sample.last.float(), wanted(text, [LAST])[:, 0].bfloat16().float(), rtol=0.07)


def test_what_only_one_project_says() -> None:
    assert [sample.prenorm for sample in read("modelopt")] == [True, True]
    assert [sample.id for sample in read("modelopt")] == ["chat-0", "chat-1"]
    assert FORMATS["automodel"].stated_ids(GOLDEN / "automodel") == [0, 1, 2]
    assert all(fmt.stated_ids(GOLDEN / name) is None for name, fmt in FORMATS.items() if name != "automodel")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "automodel"])
def test_a_capture_to_be_checked_is_read_as_it_stands(name: str) -> None:
    capture, claimed = read_capture(GOLDEN / name, hidden_size=4, num_slots=None, begins_with=None)
    assert claimed is None
    assert sorted(capture.token_ids) == sorted(map(tuple, IDS))
    assert (capture.num_slots, capture.width) == (4, 4)
