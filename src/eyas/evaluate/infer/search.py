"""Which state stands in which slot: coordinate search from several starts, with moves of two slots out of local optima.

Every slot on its own first: the one that says most is fixed, then the next, and so on; that is the first start. Others are
spread over the layers. A search ends when the best point was reached from several starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, product

Point = tuple[int, ...]
Score = Callable[[Point], float]

EMPTY = -1  # a slot that adds nothing
_RANDOM_STARTS = 3
_AGREEING_STARTS = 3
_BEST_PER_SLOT = 5


def search(num_states: int, num_slots: int, score: Score) -> Point:
    """The point with the lowest score found; no state stands in two slots. `score` remembers what it saw."""
    best: Point | None = None
    reached = 0
    for start in _starts(num_states, num_slots, score):
        found = _settle(start, num_states, score)
        if best is None or score(found) < score(best):
            best, reached = found, 1
        elif found == best:
            reached += 1
        if reached >= _AGREEING_STARTS:
            break
    assert best is not None
    return best


def neighbours(point: Point, num_states: int) -> list[Point]:
    """Points that are easily taken for `point`: one state further in one slot, all slots by one, or two slots swapped."""
    found = [_with(point, slot, point[slot] + by) for slot in range(len(point)) for by in (1, -1)]
    found += [tuple(state + by for state in point) for by in (1, -1)]
    found += _swaps(point)
    return [other for other in dict.fromkeys(found) if _valid(other, num_states) and other != point]


def _starts(num_states: int, num_slots: int, score: Score) -> Iterator[Point]:
    yield _greedy(num_states, num_slots, score)
    spread = [round((slot + 0.5) * (num_states - 1) / num_slots) for slot in range(num_slots)]
    if len(set(spread)) == num_slots:
        yield tuple(spread)
        yield tuple(reversed(spread))
    rng = random.Random(0)
    for _ in range(_RANDOM_STARTS):
        yield tuple(rng.sample(range(num_states), num_slots))


def _greedy(num_states: int, num_slots: int, score: Score) -> Point:
    """Slot by slot, the one that lowers the score most first, the others left empty so far."""
    point: Point = (EMPTY,) * num_slots
    while EMPTY in point:
        left = [state for state in range(num_states) if state not in point]
        options = [_with(point, slot, state) for slot in range(num_slots) if point[slot] == EMPTY for state in left]
        point = min(options, key=score)
    return point


def _settle(point: Point, num_states: int, score: Score) -> Point:
    while True:
        point = _descend(point, num_states, score)
        better = min(_pair_moves(point, num_states, score), key=score, default=point)
        if score(better) >= score(point):
            return point
        point = better


def _descend(point: Point, num_states: int, score: Score) -> Point:
    """One slot at a time, until no slot moves."""
    while True:
        before = point
        for slot in range(len(point)):
            point = min([point, *_slot_moves(point, slot, num_states)], key=score)
        if point == before:
            return point


def _pair_moves(point: Point, num_states: int, score: Score) -> list[Point]:
    """Swaps, whole shifts, and two slots at once over the states that are best for each alone."""
    moves = [other for other in (*_swaps(point), *(tuple(state + by for state in point) for by in (1, -1))) if _valid(other, num_states)]
    best = [sorted(_slot_moves(point, slot, num_states), key=score)[:_BEST_PER_SLOT] for slot in range(len(point))]
    for left, right in combinations(range(len(point)), 2):
        for a, b in product(best[left], best[right]):
            moves.append(_with(_with(point, left, a[left]), right, b[right]))
    return [move for move in moves if _valid(move, num_states)]


def _slot_moves(point: Point, slot: int, num_states: int) -> list[Point]:
    return [_with(point, slot, state) for state in range(num_states) if state not in point]


def _swaps(point: Point) -> list[Point]:
    return [_with(_with(point, a, point[b]), b, point[a]) for a, b in combinations(range(len(point)), 2)]


def _with(point: Point, slot: int, state: int) -> Point:
    return (*point[:slot], state, *point[slot + 1 :])


def _valid(point: Point, num_states: int) -> bool:
    return len(set(point)) == len(point) and all(0 <= state < num_states for state in point)
