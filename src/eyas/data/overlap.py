"""How much of a held-out set's wording occurs in training text: word 4-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable

N = 4


def ngrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + N]) for start in range(len(words) - N + 1)}


def overlap(heldout: Iterable[str], training: Iterable[str]) -> float:
    """The share (0 to 1) of the distinct held-out 4-grams that occur in `training`."""
    wanted = set().union(*(ngrams(text) for text in heldout))
    seen: set[tuple[str, ...]] = set()
    for text in training:
        seen |= ngrams(text) & wanted
    return len(seen) / max(1, len(wanted))
