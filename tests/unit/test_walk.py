"""The predicted walk: by hand, and against the engine's own bookkeeping on random hits."""

import random

import pytest

from eyas.engine.request import Request, SamplingParams
from eyas.evaluate.walk import walk

STOP = 99


def counts(rounds):
    return [(round_.num_proposed, round_.num_accepted, round_.num_emitted) for round_ in rounds]


def test_visits_only_the_rows_where_a_round_starts():
    answer = [10, 11, 12, 13, 14, 15, 16, 17]
    hits = [
        [True, True, False],  # two accepted: emits 11, 12, 13; rows 1 and 2 are jumped over
        [False, False, False],
        [False, False, False],
        [False, True, True],  # a miss at once, whatever comes behind: emits 14
        [True, True, True],  # all three: emits 15, 16, 17 and what the target adds, cut by the limit below
        [True, True, True],
        [True, True, True],
    ]
    rounds = walk(answer, hits, num_draft_tokens=3, max_new_tokens=8)
    assert counts(rounds) == [(3, 2, 3), (3, 0, 1), (2, 2, 3)]
    assert [round_.tokens for round_ in rounds] == [(11, 12, 13), (14,), (15, 16, 17)]


def test_proposes_no_more_than_the_limit_leaves_room_for():
    """With one token left nothing is proposed: the target's own token fills the place."""
    rounds = walk([1, 2, 3, 4], [[True] * 3, [False] * 3, [True] * 3], num_draft_tokens=3, max_new_tokens=4)
    assert counts(rounds) == [(2, 2, 3)]
    rounds = walk([1, 2, 3, 4], [[False] * 3] * 3, num_draft_tokens=3, max_new_tokens=4)
    assert counts(rounds) == [(2, 0, 1), (1, 0, 1), (0, 0, 1)]


def test_an_accepted_stop_token_ends_the_walk():
    rounds = walk([1, 2, STOP], [[True, True, True], [True, True, True]], num_draft_tokens=3, max_new_tokens=50)
    assert counts(rounds) == [(2, 2, 2)]


def test_a_stop_token_of_the_target_ends_the_walk():
    rounds = walk([1, 2, STOP], [[True, False, True], [True, True, True]], num_draft_tokens=3, max_new_tokens=50)
    assert counts(rounds) == [(3, 1, 2)]


@pytest.mark.parametrize("answer", [[STOP], [5]])
def test_an_answer_of_one_token_has_no_round(answer):
    assert walk(answer, [], num_draft_tokens=3, max_new_tokens=1) == []


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_engines_rounds(seed):
    """Feed the same verdicts to the engine's bookkeeping, round by round, as its loop would."""
    rng = random.Random(seed)
    k, limit = rng.randint(1, 5), rng.randint(1, 40)
    stop_at = rng.randint(1, 50)
    answer = list(range(100, 100 + min(limit, stop_at)))
    if stop_at <= limit:
        answer[-1] = STOP
    hits = [[rng.random() < 0.6 for _ in range(k)] for _ in range(len(answer) - 1)]
    request = Request.of([1], SamplingParams(max_new_tokens=limit), stop_ids=(STOP,))
    request.take_first(answer[0])
    padded = [*answer, *[7] * (k + 1)]  # what the target would say behind its stop token; the user never sees it
    while request.finish_reason is None:
        row = len(request.tokens) - 1
        proposed = min(k, request.num_remaining - 1)
        accepted = 0
        while accepted < proposed and (row + 1 + accepted >= len(answer) or hits[row][accepted]):
            accepted += 1
        request.take_round(padded[row + 1 : row + 2 + accepted], proposed)
    assert tuple(walk(answer, hits, k, limit)) == request.output().rounds
