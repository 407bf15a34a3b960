"""Figures alone: nobody says whether they are of greedy answers, and a server that samples accepts less."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.doctor.examination import Examination
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis
from eyas.doctor.replay.expected import predicted
from eyas.doctor.replay.trial import bench_of
from eyas.doctor.runner import examine

pytestmark = pytest.mark.timeout(300)

K = 3


@pytest.fixture(scope="module")
def lengths(served_set: Path) -> tuple[float, float]:
    """Tokens a round of this draft on greedy answers, and on answers sampled at temperature 1."""
    exam = Examination(exhibits(served_set, None), Options())
    found = [predicted(exam, bench_of(exam).given, K, temperature) for temperature in (0.0, 1.0)]
    greedy, sampled = (item.vllm_acceptance_length for item in found if item is not None)
    assert 1.3 < sampled < greedy - 0.5
    return greedy, sampled


def exhibits(folder: Path, metrics: Path | None) -> Exhibits:
    return Exhibits(target=str(folder / "target"), draft=folder / "draft", data=folder / "chats.jsonl", metrics=metrics)


def reported(folder: Path, tmp_path: Path, length: float, temperature: float | None) -> Diagnosis:
    """By the counters of a thousand rounds of vLLM."""
    accepted = [round(1000 * (length - 1) * share) for share in (0.6, 0.28, 0.12)]
    counts = {"drafts": 1000, "draft_tokens": 1000 * K, "accepted_tokens": sum(accepted)}
    rows = [f"vllm:spec_decode_num_{name}_total {value}" for name, value in counts.items()]
    rows += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}' for place, count in enumerate(accepted)]
    (tmp_path / "metrics.txt").write_text("\n".join(rows) + "\n")
    options = Options(only=("served-below",), rows=400, temperature=temperature)
    return examine(exhibits(folder, tmp_path / "metrics.txt"), options)[0]


def test_what_sampling_explains_is_no_fault_until_somebody_says_that_it_was_none(lengths, served_set: Path, tmp_path: Path):
    _, sampled = lengths
    found = reported(served_set, tmp_path, sampled + 0.05, None)
    assert (found.findings, found.verdict) == ((), "inconclusive")
    assert "--temperature" in found.summary
    assert reported(served_set, tmp_path, sampled + 0.05, 1.0).findings == ()
    [finding] = reported(served_set, tmp_path, sampled + 0.05, 0.0).findings
    assert finding.code == "served-below"


def test_what_no_temperature_explains_is_a_fault(lengths, served_set: Path, tmp_path: Path):
    greedy, sampled = lengths
    [finding] = reported(served_set, tmp_path, 1 + 0.4 * (sampled - 1), None).findings
    assert finding.code == "served-below"
    assert reported(served_set, tmp_path, greedy, None).findings == ()
