"""How tokens, rounds and proposals are counted."""

from __future__ import annotations

import pytest

from eyas.engine.request import Request, Round, SamplingParams

STOP = 9


def request(max_new_tokens: int = 20, ignore_eos: bool = False) -> Request:
    made = Request.of([1], SamplingParams(max_new_tokens, ignore_eos=ignore_eos), (STOP, 8))
    made.take_first(5)
    return made


@pytest.mark.parametrize(
    ("emitted", "expected"),
    [
        ([4], Round(3, 0, 1, (4,))),  # nothing accepted, one of the target's own
        ([4, 3, 2], Round(3, 2, 3, (4, 3, 2))),
        ([4, 3, 2, 1], Round(3, 3, 4, (4, 3, 2, 1))),
        ([STOP], Round(3, 0, 1, (STOP,))),  # the target's own token stops: all three proposals were judged
        ([4, STOP], Round(3, 1, 2, (4, STOP))),
        ([4, STOP, 2], Round(2, 2, 2, (4, STOP))),  # an accepted stop token: what it proposed behind does not count
        ([STOP, 3, 2, 1], Round(1, 1, 1, (STOP,))),
        ([4, 3, 8, 1], Round(3, 3, 3, (4, 3, 8))),  # any of the stop tokens
        ([4, STOP, 8, 1], Round(2, 2, 2, (4, STOP))),  # the first one counts
    ],
)
def test_a_round_counts_what_the_user_gets(emitted, expected):
    made = request()
    assert made.take_round(emitted, num_proposed=3) == expected
    assert made.tokens == [5, *expected.tokens]
    assert made.finish_reason == ("stop" if expected.tokens[-1] in (STOP, 8) else None)


def test_the_prefills_token_belongs_to_no_round():
    made = Request.of([1], SamplingParams(4), (STOP,))
    first = made.take_first(STOP)
    assert (first.is_prefill, first.tokens, first.num_emitted) == (True, (STOP,), 0)
    output = made.output()
    assert (output.tokens, output.rounds, output.finish_reason) == ((STOP,), (), "stop")


def test_the_limit_ends_an_answer():
    made = request(max_new_tokens=4)
    assert made.num_remaining == 3
    made.take_round([1, 2, 3], num_proposed=2)
    assert made.finish_reason == "length"


def test_a_stop_token_at_the_limit_is_a_stop():
    made = request(max_new_tokens=3)
    made.take_round([1, STOP], num_proposed=1)
    assert made.finish_reason == "stop"


def test_stop_tokens_can_be_ignored():
    made = request(ignore_eos=True)
    assert made.take_round([4, STOP, 2], num_proposed=3) == Round(3, 2, 3, (4, STOP, 2))
    assert made.finish_reason is None


def test_a_seed_and_an_index_give_the_random_numbers():
    settings = [(SamplingParams(1, seed=seed), index) for seed in (0, 1, 2) for index in (0, 1)]
    assert len({Request.of([1], params, (), index).generator.initial_seed() for params, index in settings}) == 6
