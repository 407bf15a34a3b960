"""Logits to probabilities to a token."""

from __future__ import annotations

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eyas.engine.request import SamplingParams
from eyas.engine.sampling import SamplingBatch, draw, greedy, probabilities
from eyas.errors import UserError

CPU = torch.device("cpu")


def batch_of(*params: SamplingParams) -> SamplingBatch:
    return SamplingBatch.of(params, CPU)


def sampled_probabilities(logits_BTV, owner, valid_BT=None):
    return probabilities(logits_BTV, batch_of(SamplingParams(1, 1.0)), owner, valid_BT)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.4, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 7, 1000])
def test_probabilities_are_those_of_transformers(temperature, top_p, top_k):
    logits_TV = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3
    expected_TV = TemperatureLogitsWarper(temperature)(None, logits_TV)
    if top_k:
        expected_TV = TopKLogitsWarper(top_k)(None, expected_TV)
    if top_p < 1.0:
        expected_TV = TopPLogitsWarper(top_p)(None, expected_TV)
    params = SamplingParams(1, temperature, top_p, top_k)
    got_BTV = probabilities(logits_TV.reshape(2, 3, 50), batch_of(params, params), "target")
    torch.testing.assert_close(got_BTV.reshape(6, 50), expected_TV.softmax(-1))


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])  # flat: the cut lies far down; peaked: near the top
@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (0.5, 2000), (1.0, 1024), (1.0, 3000), (0.95, 40), (1.0, 1)])
def test_a_large_vocabulary_is_cut_as_by_transformers(scale, top_p, top_k):
    logits_TV = torch.randn(3, 4000, generator=torch.Generator().manual_seed(4)) * scale
    logits_TV[0, 500:2500] = logits_TV[0].topk(900).values[-1]  # ties across the limit of the candidates
    expected_TV = TopKLogitsWarper(top_k)(None, logits_TV) if top_k else logits_TV
    if top_p < 1.0:
        expected_TV = TopPLogitsWarper(top_p)(None, expected_TV)
    expected_TV = expected_TV.softmax(-1)
    got_TV = probabilities(logits_TV[None], batch_of(SamplingParams(1, 1.0, top_p, top_k)), "target")[0]
    # Which of the tied tokens, and of those on either side of a rounding, are cut is free; how much is kept is not.
    torch.testing.assert_close(got_TV.sort().values, expected_TV.sort().values, rtol=2e-3, atol=1e-6)
    assert (((got_TV > 0).sum(-1) - (expected_TV > 0).sum(-1)).abs() <= 2).all()


def test_rows_of_one_batch_may_differ():
    logits_BTV = torch.randn(4, 2, 20, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(1), SamplingParams(1, 0.7, 0.5), SamplingParams(1, 1.3, 1.0, 3), SamplingParams(1, 1.0)]
    together_BTV = probabilities(logits_BTV, batch_of(*params), "target")
    for row, each in enumerate(params):
        torch.testing.assert_close(together_BTV[row], probabilities(logits_BTV[row : row + 1], batch_of(each), "target")[0])
    assert together_BTV[0].max(-1).values.tolist() == [1.0, 1.0]
    assert (together_BTV[2] > 0).sum(-1).tolist() == [3, 3]


def test_greedy_takes_the_first_of_equal_logits():
    assert greedy(torch.tensor([[[1.0, 5.0, 5.0, 2.0]]]), "target").tolist() == [[1]]
    assert probabilities(torch.tensor([[[1.0, 5.0, 5.0, 2.0]]]), batch_of(SamplingParams(1)), "target").tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("choose", [greedy, sampled_probabilities])
def test_logits_that_are_no_numbers_are_an_error_unless_they_are_padding(choose, bad):
    logits_BTV = torch.zeros(1, 3, 5)
    logits_BTV[0, 2, 4] = bad
    with pytest.raises(UserError, match="the draft gave logits that are not numbers"):
        choose(logits_BTV, "draft")
    valid_BT = torch.tensor([[True, True, False]])
    assert torch.isfinite(choose(logits_BTV, "draft", valid_BT)[:, :2].float()).all()


def test_a_token_may_be_forbidden_by_minus_infinity():
    logits_BTV = torch.tensor([[[0.0, float("-inf"), 0.0]]])
    assert probabilities(logits_BTV, batch_of(SamplingParams(1, 1.0)), "target").tolist() == [[[0.5, 0.0, 0.5]]]


def test_draw_never_gives_a_token_without_probability():
    probs_BV = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, 5)
    largest_below_one = 1.0 - 2.0**-53
    assert draw(probs_BV, torch.tensor([0.0, 0.4999, 0.5, largest_below_one], dtype=torch.float64)).tolist() == [1, 1, 3, 3]


def test_draw_takes_weights_that_do_not_sum_to_one():
    uniform_B = torch.rand(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(draw(torch.tensor([[0.2, 0.0, 0.6]]).expand(40_000, 3), uniform_B), minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / 40_000 - 0.75) < 0.01


@pytest.mark.parametrize(
    "wrong", [{"max_new_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SamplingParams(**{"max_new_tokens": 4, **wrong})
