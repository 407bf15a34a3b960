"""A draft that proposes more than it was trained for is at fault only where its later positions are accepted less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.later_positions import fallen
from eyas.doctor.readings import read
from eyas.doctor.runner import examine
from eyas.doctor.server_figures import ServerFigures


def counted(*counts: float, rounds: float = 1000.0) -> ServerFigures:
    return ServerFigures("vllm", "here", rounds=rounds, accepted=sum(counts), position_counts=counts)


@pytest.mark.parametrize(
    ("counts", "steps", "have"),
    [
        ((500, 250, 125, 62), 2, False),
        ((500, 250, 60, 12), 2, True),
        ((500, 250, 125, 12), 2, True),
        ((500, 250, 125, 62), 3, False),
        ((500, 250, 80, 26), 2, False),  # a third where it was a half
        ((140, 70, 35, 9), 3, False),  # a quarter of 35 may be chance
        ((500, 250, 125, 62), 4, None),  # it proposes no more
        ((40, 20, 10, 5), 2, None),  # ten rounds came to the last position
        ((0, 0, 0, 0), 2, None),
    ],
)
def test_what_was_counted_decides(counts, steps, have):
    assert fallen(read(counted(*counts)), steps) is have


def test_a_mean_decides_nothing():
    assert fallen(read(ServerFigures("sglang", "here", num_draft_tokens=4, acceptance_length=2.4)), 2) is None


@pytest.mark.parametrize(("counts", "codes"), [("500 250 125", []), ("500 250 20", ["train-steps"]), ("50 25 12", ["train-steps"])])
def test_figures_and_a_record(tmp_path: Path, counts: str, codes: list[str]):
    """In the last, too few rounds came to the last position: then the record alone speaks."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "wiring.json").write_text(json.dumps({"wiring_format": 1, "ttt_steps": 2}))
    (tmp_path / "draft" / "config.json").write_text("{}")
    numbers = [int(count) for count in counts.split()]
    rows = [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}' for place, count in enumerate(numbers)]
    totals = {"drafts": 2 * numbers[0], "draft_tokens": 6 * numbers[0], "accepted_tokens": sum(numbers)}
    rows += [f"vllm:spec_decode_num_{name}_total {value}" for name, value in totals.items()]
    (tmp_path / "metrics.txt").write_text("\n".join(rows) + "\n")
    exhibits = Exhibits(draft=tmp_path / "draft", metrics=tmp_path / "metrics.txt")
    found = examine(exhibits, Options(depths=("static",), only=("train-steps",)))[0]
    assert [finding.code for finding in found.findings] == codes, found.tested
