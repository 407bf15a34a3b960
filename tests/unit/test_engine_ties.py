"""A difference of two answers is a tie only if the arithmetic could not tell the two tokens apart."""

from __future__ import annotations

import pytest
import torch

from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.engine.ties import explain_difference
from eyas.targets.loading import load_target

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16])
def target(request, tiny_targets):
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=request.param)


@pytest.fixture(scope="module")
def answer(target):
    with Engine(target) as engine:
        return list(engine.generate([PROMPT], SamplingParams(10, ignore_eos=True))[0].tokens)


def test_equal_answers_need_no_explanation(target, answer):
    assert explain_difference(target, PROMPT, answer, list(answer)) is None


def test_another_token_is_no_tie(target, answer):
    other = [*answer[:4], (answer[4] + 1) % target.vocab_size, *answer[5:]]
    difference = explain_difference(target, PROMPT, other, answer)
    assert (difference.position, difference.ours, difference.reference) == (4, other[4], answer[4])
    assert not difference.is_tie
    assert "NOT a tie" in difference.text()


def test_two_tokens_of_equal_logits_are_a_tie(target, answer):
    twin = (answer[4] + 1) % target.vocab_size
    weight = target.lm_head.weight
    saved = weight[twin].clone()
    packed = getattr(target.lm_head, "packed", None)
    assert packed is None or target.dtype == torch.bfloat16
    try:
        weight[twin] = weight[answer[4]]
        if packed is not None:
            target.lm_head.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        difference = explain_difference(target, PROMPT, [*answer[:4], twin], answer[:5])
    finally:
        weight[twin] = saved
        if packed is not None:
            target.lm_head.packed = packed
    assert difference.is_tie, difference.text()
    assert difference.gap == 0.0


def test_a_missing_token_is_no_tie(target, answer):
    for ours, reference in ((answer[:6], answer), (answer, answer[:6])):
        difference = explain_difference(target, PROMPT, ours, reference)
        assert difference.position == 6
        assert not difference.is_tie
        assert "one answer ends" in difference.text()
