"""The texts that every layout captures: fixed ids, lengths that no number of ranks divides, one of a single token."""

from __future__ import annotations

import random

LENGTHS = (70, 3, 41, 1, 22)


def texts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(1, vocab_size) for _ in range(length)] for length in LENGTHS]  # 0 pads: its embedding is zero
