"""Rows that are right up to a position and wrong from there on: a prompt and what was decoded behind it went different ways.

Shapes: N rows of all sequences together, M rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

MIN_ROWS = 12  # on either side
_APART = 3.0  # how much farther nine of ten rows behind must be than nine of ten before


def changes_at(distance_N: torch.Tensor, position_N: torch.Tensor, allowed: float) -> tuple[int, ...]:
    """The position in each sequence from which rows lie farther from their state than `allowed`, where those before do not.

    Rows of a sequence stand together, positions rising. Empty unless most of the rows belong to sequences of that kind.
    """
    starts = [0, *((position_N[1:] <= position_N[:-1]).nonzero().flatten() + 1).tolist(), len(position_N)]
    places, num_rows = [], 0
    for start, end in pairwise(starts):
        row = _change(distance_N[start:end], allowed)
        if row is not None:
            places.append(int(position_N[start + row]))
            num_rows += end - start
    return tuple(places) if 2 * num_rows > len(distance_N) else ()


def _change(distance_M: torch.Tensor, allowed: float) -> int | None:
    for row in range(MIN_ROWS, len(distance_M) - MIN_ROWS + 1):
        before, behind = float(distance_M[:row].quantile(0.9)), float(distance_M[row:].quantile(0.1))
        if before <= allowed < float(distance_M[row:].median()) and behind >= _APART * before:
            return _dividing_row(distance_M > (max(before, 1e-9) * behind) ** 0.5)
    return None


def _dividing_row(far_M: torch.Tensor) -> int:
    """The row that leaves the fewest far ones before it and near ones behind it."""
    before_M = torch.cat([torch.zeros(1), far_M.float().cumsum(0)])
    behind_M = torch.cat([(~far_M).float().flip(0).cumsum(0).flip(0), torch.zeros(1)])
    return int((before_M + behind_M).argmin())


def words(places: Sequence[int]) -> str:
    where = f"position {places[0]}" if len(places) == 1 else f"a position of each sequence ({', '.join(map(str, places[:4]))})"
    return (
        f"rows are right up to {where} and something else from there on: what was decoded did not see the context of the prompt, "
        "as when context parallelism, which is for prefill, stays active in decode"
    )
