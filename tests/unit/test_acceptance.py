"""Acceptance figures against logs whose results were worked out by hand."""

import json
import random

import pytest

from eyas.engine.request import Request, Round, SamplingParams
from eyas.evaluate.acceptance import Acceptance, acceptance, bootstrap, num_accepted, num_judged, sglang_num_draft_tokens


def a_round(proposed: int, accepted: int, emitted: int | None = None) -> Round:
    emitted = accepted + 1 if emitted is None else emitted
    return Round(num_proposed=proposed, num_accepted=accepted, num_emitted=emitted, tokens=tuple(range(emitted)))


def test_figures_of_a_log_worked_out_by_hand():
    figures = acceptance([[a_round(3, 3), a_round(3, 0), a_round(3, 1)], [a_round(3, 2), a_round(2, 2), a_round(0, 0)]], 3)
    assert (figures.rounds, figures.accepted, figures.emitted, figures.proposed) == (6, 8, 14, 14)
    assert figures.acceptance_length == pytest.approx(14 / 6)
    assert figures.vllm_acceptance_length == pytest.approx(1 + 8 / 6)
    # position 0: proposed 5 times, accepted 4; position 1: reached 4 times, accepted 3; position 2: the round that
    # proposed two only is left out, so reached 2 times (3 and 2 accepted), accepted once
    assert figures.conditional == pytest.approx((4 / 5, 3 / 4, 1 / 2))
    assert figures.unconditional == pytest.approx((4 / 5, 3 / 5, 1 / 4))


def test_a_stop_token_inside_the_drafts_emits_no_bonus_token():
    """Five proposed, the second accepted draft is the stop token: two tokens for the user, three proposals unjudged."""
    for recorded in (a_round(2, 2, 2), a_round(5, 2, 2), a_round(5, 4, 2)):
        assert (num_accepted(recorded), num_judged(recorded)) == (2, 2)
        figures = acceptance([[a_round(5, 1), recorded]], 5)
        assert figures.acceptance_length == pytest.approx(4 / 2)
        assert figures.vllm_acceptance_length == pytest.approx(1 + 3 / 2)
        assert figures.conditional == (1.0, 0.5, None, None, None)
        assert figures.unconditional == (1.0, 0.5, 0.0, 0.0, 0.0)


def test_a_stop_token_as_the_bonus_token_counts_as_emitted():
    figures = acceptance([[a_round(3, 2)]], 3)
    assert (figures.emitted, figures.conditional) == (3, (1.0, 1.0, 0.0))


def test_the_prefill_token_belongs_to_no_round():
    """The engine's own bookkeeping: three tokens, of which the prefill gives one."""
    request = Request.of([1], SamplingParams(max_new_tokens=3), stop_ids=())
    request.take_first(5)
    request.take_round([6, 7], num_proposed=1)
    figures = acceptance([request.output().rounds], 3)
    assert (figures.emitted, figures.rounds, figures.acceptance_length) == (2, 1, 2.0)


def test_an_aborted_chat_counts_the_rounds_that_it_had():
    assert acceptance([[a_round(3, 1)], []], 3).rounds == 1


def test_no_round_no_figures():
    assert acceptance([[], []], 3) is None


def test_a_position_never_proposed_has_no_rate():
    figures = acceptance([[a_round(1, 1)]], 3)
    assert figures.conditional == figures.unconditional == (1.0, None, None)


@pytest.mark.parametrize("bad", [a_round(2, 3), a_round(4, 1), a_round(3, 1, 3), a_round(3, 0, 0)])
def test_impossible_rounds_are_bugs(bad):
    with pytest.raises(AssertionError):
        acceptance([[bad]], 3)


def test_rates_follow_from_each_other_and_stay_within_one():
    """With K proposed in every round, unconditional rates are running products of conditional ones, and 1 + their sum is
    the acceptance length."""
    rng = random.Random(0)
    figures = acceptance([[a_round(4, rng.choice([0, 0, 1, 2, 3, 4])) for _ in range(50)] for _ in range(8)], 4)
    product = 1.0
    for conditional, unconditional in zip(figures.conditional, figures.unconditional, strict=True):
        product *= conditional
        assert 0 <= unconditional <= conditional <= 1
        assert unconditional == pytest.approx(product)
    assert figures.acceptance_length == pytest.approx(1 + sum(figures.unconditional)) == pytest.approx(figures.vllm_acceptance_length)


def test_confidence_interval_is_fixed_and_drawn_over_chats():
    alike = [(20, 10)] * 30
    apart = [(10, 10)] * 15 + [(30, 10)] * 15
    assert bootstrap(alike) == (2.0, 2.0)
    low, high = bootstrap(apart)
    assert bootstrap(apart) == (low, high)
    # the standard error of the mean of thirty chats of 1 or 3 is 0.18
    assert 1.6 < low < 1.8
    assert 2.2 < high < 2.4


def test_k_in_the_words_of_other_engines():
    assert sglang_num_draft_tokens(3) == 4


def test_figures_go_into_json_and_back():
    figures = acceptance([[a_round(3, 1)]], 3)
    value = json.loads(json.dumps(figures.to_json()))
    assert value["conditional"] == [1.0, 0.0, None]
    assert value["acceptance_length"] == 2.0
    assert Acceptance.from_json(value) == figures
