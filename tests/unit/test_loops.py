"""The loop rule: found with its exact start and period, and not seen where text merely repeats a little."""

from __future__ import annotations

import random

import pytest

from eyas.loops import MAX_PERIOD, MIN_REPEATS, MIN_TOKENS, find_loop


@pytest.mark.parametrize("period", [1, 2, 5, 8, MAX_PERIOD])
def test_a_loop_is_found_where_it_begins(period):
    head = list(range(1000, 1020))
    repeats = max(MIN_REPEATS, -(-MIN_TOKENS // period))
    loop = find_loop(head + list(range(period)) * repeats)
    assert loop is not None
    assert (loop.start, loop.period) == (len(head), period)


def test_a_cut_off_last_unit_still_counts():
    loop = find_loop([7, 7, 7, *([1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 3), 1, 2, 3])
    assert loop is not None
    assert (loop.start, loop.period) == (3, 10)


@pytest.mark.parametrize("period", [1, 5, 8, MAX_PERIOD])
def test_one_token_less_is_no_loop(period):
    needed = max(MIN_TOKENS, MIN_REPEATS * period)
    tail = (list(range(period)) * needed)[:needed]
    assert find_loop([1000, *tail]) is not None
    assert find_loop([1000, *tail[1:]]) is None


def test_a_unit_longer_than_the_limit_is_no_loop():
    assert find_loop(list(range(MAX_PERIOD + 1)) * MIN_REPEATS) is None


def test_a_loop_that_the_text_leaves_again_is_none():
    assert find_loop([1, 2] * 40 + [3]) is None


def test_ordinary_text_and_short_texts():
    rng = random.Random(0)
    assert find_loop([rng.randrange(50) for _ in range(500)]) is None
    assert find_loop([]) is None
    assert find_loop([1, 1, 1]) is None
