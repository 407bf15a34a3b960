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
