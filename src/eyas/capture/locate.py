"""Which state of the target a slot's rows are, and what was done to them on the way.

The nearest state alone is not an answer: the verdict goes by how much nearer it is than the runner-up. Where rows in their
own places match nothing, explanations are tried one by one (other places, another scale, one more norm, only a part of a
branch's sum), and one is believed only if it is decisively better than what stood there before.

Shapes: N captured rows, P positions, S states, K sketch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.capture.reference import Reference, state_tap
from eyas.capture.rows import RowOrder, row_orders
from eyas.capture.tails import changes_at, words

CERTAIN = 0.8  # ratio to the runner-up up to which a state counts as found
DECISIVE = 0.5  # the same for an explanation, and for how much nearer than without it the state must be
NO_MATCH = 0.5  # a state that is half its own length away is none
_MIN_ROWS = 8
_FAR_ROWS = 0.3
_MOST_ROWS = 0.8  # orders are chosen by this quantile: one that is right for half of the rows is not right
_FEW_ROWS = 0.1
_PARTIAL_COSINE = 0.2  # between what a state is off by and the branch that it lacks; noise gives 0.03 over 128 rows
_PARTIAL_COSINE_INSIDE = 0.1
_SAME_SCALE = 0.03
SAME = 1e-3  # nearer than that a state is as it should be


@dataclass(frozen=True)
class Match:
    """The nearest state and the runner-up, with their places in the reference, and what has to be assumed for it (None: nothing)."""

    state: int
    distance: float
    runner_up: int
    runner_up_distance: float
    problem: str | None = None
    detail: str = ""

    @property
    def ratio(self) -> float:
        return self.distance / max(self.runner_up_distance, 1e-12)

    @property
    def certain(self) -> bool:
        return self.distance < NO_MATCH and self.ratio <= CERTAIN

    def because(self, problem: str, detail: str) -> Match:
        """The same match under another explanation."""
        return replace(self, problem=problem, detail=detail)

    def better_than(self, other: Match) -> bool:
        return self.distance < NO_MATCH and self.ratio <= DECISIVE and self.distance <= DECISIVE * other.distance


NOTHING = Match(0, float("inf"), 0, float("inf"))


@dataclass(frozen=True)
class Rows:
    """A slot's rows, as sketches [N, K], with how many belong to each sequence; `zero_N` marks rows that are all zero."""

    sketches: torch.Tensor
    counts: tuple[int, ...]
    zero_N: torch.Tensor


def locate(reference: Reference, rows: Rows, block: int = 0) -> Match:
    """The best explanation of `rows`. `block`: of the reference's column blocks."""
    plain = _in_place(reference, rows, block)
    proven = _proven_partial(reference, rows, plain)
    if proven is not None:
        return proven
    if plain is not None and plain.certain and plain.distance <= float(reference.allowed[plain.state]):
        inside = plain.distance > SAME and reference.state_names[plain.state].startswith("mid:")
        return (_partial(reference, rows, block, plain) if inside else None) or _whole(reference, rows, block, plain)
    found = list(_explanations(reference, rows, block, plain))
    best = min((match for match in found if plain is None or match.better_than(plain)), key=lambda match: match.distance, default=None)
    if best is not None:
        return best
    if plain is None:  # rows for which there is no place at all
        return min(found, key=lambda match: match.distance, default=NOTHING)
    return _tail(reference, rows, block, plain) or _partial(reference, rows, block, plain) or plain


def nearest(distance_S: torch.Tensor, problem: str | None = None, detail: str = "") -> Match:
    order = distance_S.argsort().tolist()
    return Match(order[0], float(distance_S[order[0]]), order[1], float(distance_S[order[1]]), problem, detail)


def place_distances(reference: Reference, rows: Rows, order: RowOrder, block: int = 0, quantile: float = 0.5) -> torch.Tensor | None:
    """Distance [S] to every state with the rows in `order`, the median or another quantile; None if too few rows have a place."""
    rows_N = order.rows
    used_N = (rows_N >= 0) & ~rows.zero_N
    used_N &= reference.counts_P[rows_N.clamp_min(0)]
    if int(used_N.sum()) < _MIN_ROWS:
        return None
    truth_SNK = reference.sketches[block][:, rows_N[used_N]]
    return _row_distances(rows.sketches[used_N], truth_SNK).quantile(quantile, dim=-1)


def _row_distances(found_NK: torch.Tensor, truth_SNK: torch.Tensor) -> torch.Tensor:
    """[S, N]."""
    return (found_NK - truth_SNK).norm(dim=-1) / truth_SNK.norm(dim=-1).clamp_min(1e-12)


def _whole(reference: Reference, rows: Rows, block: int, plain: Match) -> Match:
    """The median does not see what happened to fewer than half of the rows; a few may differ lawfully (routing at ties)."""
    tail = _tail(reference, rows, block, plain)
    if tail is not None:
        return tail
    found_MK, truth_SMK = _used(reference, rows, block)
    far = float((_row_distances(found_MK, truth_SMK[plain.state]) > NO_MATCH).float().mean())
    return plain if far <= _FAR_ROWS else plain.because("some rows differ", f"{100 * far:.0f} % of the rows hold something else")


def _tail(reference: Reference, rows: Rows, block: int, plain: Match) -> Match | None:
    """Right up to a position: the state is that which a tenth of the rows is nearest to, judged by the rows before the change."""
    used_N, rows_N = _places(reference, rows)
    distance_SM = _row_distances(rows.sketches[used_N], reference.sketches[block][:, rows_N[used_N]])
    state = plain.state if plain.certain else int(distance_SM.quantile(_FEW_ROWS, dim=-1).argmin())
    position_M = reference.position_P[rows_N[used_N]]
    places = changes_at(distance_SM[state], position_M, float(reference.allowed[state]))
    if not places:
        return None
    before_M = position_M < min(places)
    return nearest(distance_SM[:, before_M].median(dim=-1).values, "rows differ from a position on", words(places))


def _in_place(reference: Reference, rows: Rows, block: int) -> Match | None:
    order = next(row_orders(reference.lengths, rows.counts), None)
    if order is None or order.kind != "in order":
        return None
    distance_S = place_distances(reference, rows, order, block)
    return None if distance_S is None else nearest(distance_S)


def _explanations(reference: Reference, rows: Rows, block: int, plain: Match | None) -> Sequence[Match]:
    found = [_other_places(reference, rows, block)]
    if plain is not None:
        found += [_rescaled(reference, rows, block), *_normed(reference, rows)]
    known = [match for match in found if match is not None]
    if not any(plain is None or match.better_than(plain) for match in known):
        known += [match for match in [_any_places(reference, rows, block)] if match is not None]
    return known


def _other_places(reference: Reference, rows: Rows, block: int) -> Match | None:
    orders = [order for order in row_orders(reference.lengths, rows.counts) if order.kind != "in order"]
    spread = [place_distances(reference, rows, order, block, _MOST_ROWS) for order in orders]
    known = [(float(distance_S.min()), place) for place, distance_S in enumerate(spread) if distance_S is not None]
    if not known:
        return None
    order = orders[min(known)[1]]
    distance_S = place_distances(reference, rows, order, block)
    assert distance_S is not None
    return nearest(distance_S, f"rows {order.kind}", order.what)


def _used(reference: Reference, rows: Rows, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in their own places that count: [M, K], and the states there [S, M, K]."""
    used_N, rows_N = _places(reference, rows)
    return rows.sketches[used_N], reference.sketches[block][:, rows_N[used_N]]


def _places(reference: Reference, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """For rows in their own places: which of them count [N], and the position of each [N]."""
    rows_N = next(row_orders(reference.lengths, rows.counts)).rows
    return (rows_N >= 0) & ~rows.zero_N & reference.counts_P[rows_N.clamp_min(0)], rows_N


def _rescaled(reference: Reference, rows: Rows, block: int) -> Match | None:
    """The same directions in other lengths: a factor for all rows, or one a row, as a norm with nearly equal weights gives."""
    found_MK, truth_SMK = _used(reference, rows, block)
    length_SM = (truth_SMK * truth_SMK).sum(-1).clamp_min(1e-24)
    factor_SM = (found_MK * truth_SMK).sum(-1) / length_SM
    scaled_SMK = truth_SMK * factor_SM.clamp_min(1e-12)[..., None]
    distance_S = ((found_MK - scaled_SMK).norm(dim=-1) / scaled_SMK.norm(dim=-1).clamp_min(1e-12)).median(dim=-1).values
    match = nearest(distance_S)
    factor_M = factor_SM[match.state]
    factor = float(factor_M.median())
    if factor <= 0 or abs(factor - 1) < _SAME_SCALE:
        return None
    spread = float((factor_M / factor - 1).abs().median())
    if spread < _SAME_SCALE:
        return nearest(distance_S, "scaled", f"every row {factor:.3g} times as long")
    return nearest(distance_S, "normed", "every row has a length of its own: an RMSNorm whose weights are nearly equal")


def _normed(reference: Reference, rows: Rows) -> Sequence[Match]:
    """States after one more norm; known only where a target was at hand."""
    if not reference.normed:
        return []
    used_N, rows_N = _places(reference, rows)
    matches = []
    for what, (names, sketches_SPK) in reference.normed.items():
        if len(names) < 2:
            continue
        found = nearest(
            _row_distances(rows.sketches[used_N], sketches_SPK[:, rows_N[used_N]]).median(dim=-1).values,
            "normed",
            f"{what} was applied",
        )
        places = [reference.state_names.index(name) for name in names]
        matches.append(replace(found, state=places[found.state], runner_up=places[found.runner_up]))
    return matches


def _any_places(reference: Reference, rows: Rows, block: int) -> Match | None:
    """Each row beside whatever position it is most like: an order that has no name here."""
    used_NK = rows.sketches[~rows.zero_N]
    if len(used_NK) < _MIN_ROWS:
        return None
    places = reference.counts_P.nonzero().flatten()
    distances, orders = [], []
    for truth_PK in reference.sketches[block][:, places]:
        distance_NP = torch.cdist(used_NK, truth_PK) / truth_PK.norm(dim=-1).clamp_min(1e-12)
        best = distance_NP.min(dim=-1)
        distances.append(best.values.median())
        orders.append(best.indices)
    match = nearest(torch.stack(distances))
    distinct = len(orders[match.state].unique()) / len(used_NK)
    fewer = sum(rows.counts) < sum(reference.lengths)
    kind = "rows scattered" if fewer else "rows permuted"
    return nearest(torch.stack(distances), kind, f"in no order that has a name; {100 * distinct:.0f} % of the rows are different positions")


def _proven_partial(reference: Reference, rows: Rows, plain: Match | None) -> Match | None:
    """A residual with exactly what one rank adds to it; looked for even in states that rounding would explain."""
    if plain is None or plain.distance <= SAME or len(reference.sketches) > 1:
        return None
    used_N, rows_N = _places(reference, rows)
    found_MK, place_M = rows.sketches[used_N], rows_N[used_N]
    best = NOTHING
    for (before, after), by_ranks in reference.shares.items():
        start_MK = reference.sketches[0][before][place_M]
        for ranks, share_RPK in by_ranks.items():
            distance_R = _row_distances(found_MK, start_MK + share_RPK[:, place_M]).median(dim=-1).values
            rank = int(distance_R.argmin())
            if float(distance_R[rank]) < best.distance:
                start, end = (state_tap(reference.state_names[state]) for state in (before, after))
                detail = f"{start} with the share of rank {rank} of {ranks} in what leads to {end}, before the all-reduce"
                best = Match(after, float(distance_R[rank]), plain.state, plain.distance, "partial", detail)
    return best if best.better_than(plain) else None


def _partial(reference: Reference, rows: Rows, block: int, plain: Match) -> Match | None:
    """Is the rest by which the nearest state is missed a share of the branch before or behind it?"""
    if plain.distance >= NO_MATCH:
        return None
    found_MK, truth_SMK = _used(reference, rows, block)
    rest_MK = found_MK - truth_SMK[plain.state]
    best = (0.0, plain.state)
    for before, after in reference.branches():
        if plain.state in (before, after):
            branch_MK = truth_SMK[after] - truth_SMK[before]
            toward_MK = branch_MK if plain.state == before else -branch_MK
            cosine = float(torch.cosine_similarity(rest_MK, toward_MK, dim=-1).median())
            best = max(best, (cosine, after))
    # The share of one of many ranks is near the residual, and turned away from the branch. The one inside a layer is no state that
    # anybody wants, so that less will do to suspect a part there.
    inside = reference.state_names[plain.state].startswith("mid:") and best[1] != plain.state
    if best[0] < (_PARTIAL_COSINE_INSIDE if inside else _PARTIAL_COSINE):
        return None
    before = next(a for a, b in reference.branches() if b == best[1])
    name, start = state_tap(reference.state_names[best[1]]), state_tap(reference.state_names[before])
    detail = f"{start} with a part of what leads to {name}: one rank's share, before the all-reduce (the other ranks' files would prove it)"
    return Match(best[1], plain.distance, plain.runner_up, plain.runner_up_distance, "partial", detail)
