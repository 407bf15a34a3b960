"""The accept rule on hand-made logits."""

from __future__ import annotations

import pytest
import torch

from eyas.engine.request import SamplingParams
from eyas.engine.sampling import SamplingBatch, greedy, probabilities
from eyas.engine.verify import residual, verify_greedy, verify_sampled

#                              a  b  c  d   : the target prefers 2, then 0, then 3, then 1
TARGET_LOGITS = torch.tensor([[0, 1, 9, 2], [8, 1, 2, 3], [0, 1, 2, 7], [1, 6, 0, 2]], dtype=torch.float32)
HAND_MADE = [
    ([1, 0, 3], 0, [2]),  # none
    ([2, 1, 3], 1, [2, 0]),  # some: what comes behind the first refused one is not looked at
    ([2, 0, 1], 2, [2, 0, 3]),
    ([2, 0, 3], 3, [2, 0, 3, 1]),  # all, and one more
    ([1, 1, 1], 0, [2]),
]


def judge_greedily(proposed, num_proposed=3):
    return verify_greedy(greedy(TARGET_LOGITS[None], "target"), torch.tensor([proposed]), torch.tensor([num_proposed]))


def judge_as_sampling(proposed, num_proposed=3):
    batch = SamplingBatch.of([SamplingParams(1)], torch.device("cpu"))
    draft_1KV = torch.nn.functional.one_hot(torch.tensor([proposed]), 4).float()
    target_1TV = probabilities(TARGET_LOGITS[None], batch, "target")
    uniform_1T = torch.full((1, 4), 0.999)
    return verify_sampled(target_1TV, draft_1KV, torch.tensor([proposed]), torch.tensor([num_proposed]), uniform_1T)


@pytest.mark.parametrize("judge", [judge_greedily, judge_as_sampling])
@pytest.mark.parametrize(("proposed", "num_accepted", "emitted"), HAND_MADE)
def test_none_some_and_all_accepted(judge, proposed, num_accepted, emitted):
    verdict = judge(proposed)
    assert verdict.num_accepted_B.tolist() == [num_accepted]
    assert verdict.token_BT[0, : num_accepted + 1].tolist() == emitted


@pytest.mark.parametrize("judge", [judge_greedily, judge_as_sampling])
@pytest.mark.parametrize("num_proposed", [0, 1, 2])
def test_what_lies_behind_a_rows_last_proposal_is_not_accepted(judge, num_proposed):
    verdict = judge([2, 0, 3], num_proposed)
    assert verdict.num_accepted_B.tolist() == [num_proposed]
    assert verdict.token_BT[0, : num_proposed + 1].tolist() == [2, 0, 3][: num_proposed + 1]


@pytest.mark.parametrize("judge", [verify_greedy, None])
def test_rows_are_judged_apart(judge):
    proposed_BK = torch.tensor([row for row, _, _ in HAND_MADE])
    verdict = verify_greedy(greedy(TARGET_LOGITS.expand(5, 4, 4), "target"), proposed_BK, torch.full((5,), 3))
    if judge is None:
        batch = SamplingBatch.of([SamplingParams(1)] * 5, torch.device("cpu"))
        target_BTV = probabilities(TARGET_LOGITS.expand(5, 4, 4), batch, "target")
        draft_BKV = torch.nn.functional.one_hot(proposed_BK, 4).float()
        verdict = verify_sampled(target_BTV, draft_BKV, proposed_BK, torch.full((5,), 3), torch.rand(5, 4))
    assert verdict.num_accepted_B.tolist() == [count for _, count, _ in HAND_MADE]


def test_nothing_proposed_draws_from_the_target():
    target_1TV = torch.tensor([[[0.25, 0.0, 0.75]]])
    nothing = torch.empty(1, 0, dtype=torch.long)
    for uniform, token in ((0.2, 0), (0.3, 2)):
        verdict = verify_sampled(target_1TV, torch.empty(1, 0, 3), nothing, torch.tensor([0]), torch.tensor([[uniform]]))
        assert verdict.num_accepted_B.tolist() == [0]
        assert verdict.token_BT.tolist() == [[token]]


@pytest.mark.parametrize(("uniform", "accepted"), [(0.49, 1), (0.51, 0)])
def test_the_ratio_of_the_probabilities_decides(uniform, accepted):
    target_1TV = torch.tensor([[[0.4, 0.6], [0.5, 0.5]]])
    draft_1KV = torch.tensor([[[0.8, 0.2]]])
    verdict = verify_sampled(target_1TV, draft_1KV, torch.tensor([[0]]), torch.tensor([1]), torch.tensor([[uniform, 0.0]]))
    assert verdict.num_accepted_B.tolist() == [accepted]
    if not accepted:  # 0.4 - 0.8 < 0 leaves only token 1
        assert verdict.token_BT[0, 0] == 1


def test_residual():
    p_BV, q_BV = torch.tensor([[0.5, 0.3, 0.2]] * 2), torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.3, 0.2]])
    torch.testing.assert_close(residual(p_BV, q_BV), torch.tensor([[0.4, 0.0, 0.0], [0.5, 0.3, 0.2]]))
