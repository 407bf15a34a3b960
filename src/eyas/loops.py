"""Answers that fall into a loop: a small model under greedy decoding often ends by repeating itself.

Loops are easy to draft, so they flatter every acceptance figure. They are found by one rule everywhere: in training
text, where an answer is cut when it starts to loop, and in evaluation, where figures are given with and without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_REPEATS = 3
MIN_TOKENS = 24
MAX_PERIOD = 64


@dataclass(frozen=True)
class Loop:
    """Tokens from `start` on repeat a unit of `period` tokens."""

    start: int
    period: int


def find_loop(tokens: Sequence[int]) -> Loop | None:
    """The loop in which the text ends, or None.

    A loop is a tail of at least MIN_TOKENS tokens that repeats a unit of at most MAX_PERIOD tokens at least
    MIN_REPEATS times.
    """
    size = len(tokens)
    for period in range(1, min(MAX_PERIOD, size // MIN_REPEATS) + 1):
        start = size - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        if size - start >= max(MIN_TOKENS, MIN_REPEATS * period):
            return Loop(start, period)
    return None
