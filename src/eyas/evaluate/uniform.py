"""Uniform accuracy: how often the draft's argmax is the target's own, over all scored rows, step by step.

Every row counts once, whether or not decoding would start a round there, so this is a property of draft and text alone:
the figure to watch in training. It says nothing about tokens per round; that is the walk's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.evaluate.forecast import Forecast


def uniform_accuracy(forecasts: Sequence[Forecast], num_steps: int) -> tuple[float | None, ...]:
    """One rate a step, None where no row reaches so far. A target token that the draft does not know is a miss.

    Step k at row r is held against the target's top-1 after a[r+k], the position at which it is verified.
    """
    rates: list[float | None] = []
    for step in range(num_steps):
        hits = total = 0
        for item in forecasts:
            rows = max(0, len(item.choice_R) - step)
            hits += int((item.proposed_RK[:rows, step] == item.choice_R[step:]).sum()) if rows else 0
            total += rows
        rates.append(hits / total if total else None)
    return tuple(rates)
