"""A later state's own knowledge of the answer, and what `wiring infer` makes of it."""

from __future__ import annotations

import pytest
import torch

from eyas.capture.plan import Text
from eyas.evaluate.infer.evidence import Evidence, gather_evidence
from eyas.evaluate.infer.lens import lens_accuracy
from eyas.targets.loading import load_target
from eyas.targets.target import Target


@pytest.fixture(scope="module")
def target(tiny_targets) -> Target:
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def evidence(target: Target) -> Evidence:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, target.vocab_size, (length,), generator=generator).tolist() for length in (24, 25, 31)]
    found = [Text(str(number), tuple(row), tuple(place > 3 for place in range(len(row)))) for number, row in enumerate(rows)]
    return gather_evidence(target, found, 60, 30)


def test_the_final_state_of_the_position_after_is_the_answer_itself(target: Target, evidence: Evidence):
    final = len(evidence.taps) - 1
    hits_N = lens_accuracy(target, evidence.first, [0, final], -1)
    assert len(hits_N) == sum(batch.num_rows for batch in evidence.first)
    assert bool(hits_N.all())
    assert not bool(lens_accuracy(target, evidence.first, [final], 0).all()), "its own state knows one token less"


def test_a_layers_state_is_read_through_the_final_norm(target: Target, evidence: Evidence):
    last = len(evidence.taps) - 2
    assert bool(lens_accuracy(target, evidence.first, [last], -1).all())
    batch = evidence.first[0]
    with torch.no_grad():
        said_BT = target.head(target.norm(batch.states[1])).argmax(-1)
    expected = [
        int(said_BT[text, int(row) + 1]) == int(label)
        for text in range(len(batch.row_BR))
        for row, label, valid in zip(batch.row_BR[text], batch.label_BR[text], batch.valid_BR[text], strict=True)
        if valid
    ]
    assert lens_accuracy(target, [batch], [1], -1).tolist() == expected


def test_a_weak_draft_that_passes_later_states_on_is_not_said_to_be_shifted(target: Target, evidence: Evidence, monkeypatch):
    """It gains by the state after its own what that state says by itself; a draft that gains more was trained on it."""
    from eyas.evaluate.infer import hypotheses
    from eyas.evaluate.infer.measure import Hits

    none = torch.zeros(0, dtype=torch.bool)
    rows = torch.arange(3000)
    own, later = rows % 10 == 0, rows % 5 != 0

    def measured(draft: object, evidence: object, hypothesis: hypotheses.Hypothesis, batches: object) -> Hits:
        return Hits(later if hypothesis.shift == -1 else own & (rows % 20 == 0) if hypothesis.shift else own, none, torch.zeros(3000))

    monkeypatch.setattr(hypotheses, "measure", measured)
    monkeypatch.setattr(hypotheses, "lens_accuracy", lambda *arguments: rows % 5 != 1)
    passed_on = hypotheses._judge_shift(target, None, evidence, evidence.taps[:2])  # type: ignore[arg-type]
    assert (passed_on.best, passed_on.decided) == (0, False)
    assert passed_on.accuracies["-1 by the states alone"] == pytest.approx(4 / 5)
    monkeypatch.setattr(hypotheses, "lens_accuracy", lambda *arguments: rows % 9 == 0)
    trained = hypotheses._judge_shift(target, None, evidence, evidence.taps[:2])  # type: ignore[arg-type]
    assert (trained.best, trained.decided) == (-1, True)


def test_few_rows_decide_no_switch_either(target: Target, evidence: Evidence, monkeypatch):
    from eyas.evaluate.infer import hypotheses
    from eyas.evaluate.infer.hypotheses import Other

    sure = Other("x", declared=False, best=True, decided=True, accuracies={}, changes={"x": True})
    monkeypatch.setattr(hypotheses, "_judge", lambda *arguments: sure)
    monkeypatch.setattr(hypotheses, "_judge_shift", lambda *arguments: sure)
    monkeypatch.setattr(hypotheses, "_judge_rope", lambda *arguments: sure)
    from eyas.draft.config import DraftConfig
    from eyas.draft.model import Eagle3Draft

    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=target.vocab_size))
    found = hypotheses.judge_others(target, draft, evidence, evidence.taps[:2])
    assert [(item.best, item.decided, item.changes) for item in found] == [(False, False, {})] * 4


@pytest.mark.parametrize(("decided", "declared"), [(True, False), (False, False), (False, True)])
def test_only_what_is_decided_is_recommended(decided: bool, declared: bool):
    from eyas.cli.infer import _declared
    from eyas.evaluate.infer.infer import Candidate, InferReport
    from eyas.taps import parse_taps

    best, other = parse_taps("layer:1,layer:3"), parse_taps("layer:1,layer:2")
    report = InferReport((Candidate(best, 0.5, None, None),), decided, "why", (), 3000, 10, 0.0, 0.0)
    line = _declared(other if declared else (), report)
    assert ("--taps layer:1,layer:3" in line) == decided
    assert ("--rows" in line) == (not decided)
    assert "not the best" not in line
