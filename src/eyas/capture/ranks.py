"""From what the ranks of one server wrote to what a slot holds.

Where ranks disagree, each holds a part: columns, rows, or one rank's share of a sum that was read before its all-reduce.
Of such shares x_r, over R ranks, Σ_r x_r - (R-1)·residual is the state; of an embedding that is split by vocabulary,
Σ_r x_r is.

Shapes: N rows of all sequences together, n slots, W width of a slot, H hidden size, K sketch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.capture.fingerprint import sketch_columns
from eyas.capture.locate import DECISIVE, NO_MATCH, NOTHING, Match, Rows, locate, nearest, place_distances
from eyas.capture.reference import Reference, state_tap
from eyas.capture.rows import RowOrder, row_orders

_RANKS_AGREE = 1e-3


@dataclass(frozen=True)
class Capture:
    """What one rank (or a whole server) wrote: per sequence token ids, and states [rows, n, W]."""

    token_ids: tuple[tuple[int, ...], ...]
    states: tuple[torch.Tensor, ...]
    source: str

    @property
    def num_slots(self) -> int:
        return self.states[0].shape[1]

    @property
    def width(self) -> int:
        return self.states[0].shape[2]

    def slot(self, number: int) -> torch.Tensor:
        """[N, W] in fp32."""
        return torch.cat([state_TnW[:, number].float() for state_TnW in self.states])

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.states))


def match_ranks(reference: Reference, captures: Sequence[Capture], parts: list[torch.Tensor]) -> Match:
    first = captures[0]
    if first.width != reference.hidden_size:
        return _columns(reference, captures, parts)
    rows = [_rows(part, capture, 0, reference.hidden_size) for part, capture in zip(parts, captures, strict=True)]
    if len(rows) == 1 or _agree(rows):
        return _one(reference, rows[0], first)
    together = [found for found in (_scattered(reference, captures, parts), _summed(reference, rows)) if found is not None]
    if together:
        return min(together, key=lambda match: match.distance)
    alone = min((_one(reference, row, first) for row in rows), key=lambda match: match.distance)
    return alone if alone.problem else alone.because("ranks differ", "and no sum, order or split of what they hold is a state")


def _one(reference: Reference, rows: Rows, capture: Capture) -> Match:
    """One capture by itself, rows that are all zero left out and then accounted for."""
    if bool(rows.zero_N.all()):
        return NOTHING.because("unknown", "every row is zero")
    match = locate(reference, rows)
    padding = max(0, sum(rows.counts) - sum(reference.lengths))  # of the last shard
    zero = int(rows.zero_N.sum()) - padding
    said = f"{zero} of {len(rows.zero_N)} rows are zero"
    if zero > 0 and match.problem == "rows permuted":
        return match.because("rows scattered", f"{said}, the others one rank's: {match.detail}")
    if zero <= 0 or match.problem is not None or not match.certain:
        return match
    names = reference.state_names
    if names[match.state] != "boundary:0":
        return match.because("rows scattered", said + ": another rank's rows")
    ids = torch.tensor([token for sequence in capture.token_ids for token in sequence])[: len(rows.zero_N)]
    held = ids[~rows.zero_N[: len(ids)]]
    detail = f"{said}: a vocabulary-parallel embedding before its all-reduce; this rank holds ids {int(held.min())} to {int(held.max())}"
    return match.because("embedding not reduced", detail)


def _rows(part_NW: torch.Tensor, capture: Capture, start: int, hidden_size: int) -> Rows:
    return Rows(sketch_columns(part_NW, start, hidden_size), capture.counts, (part_NW == 0).all(-1))


def _agree(rows: Sequence[Rows]) -> bool:
    if any(other.counts != rows[0].counts for other in rows):
        return False
    length_N = rows[0].sketches.norm(dim=-1).clamp_min(1e-12)
    return all(float(((other.sketches - rows[0].sketches).norm(dim=-1) / length_N).median()) < _RANKS_AGREE for other in rows[1:])


def _columns(reference: Reference, captures: Sequence[Capture], parts: list[torch.Tensor]) -> Match:
    """Slots narrower than the hidden size: of all ranks together, or (with a target) of one rank alone."""
    width, hidden = captures[0].width, reference.hidden_size
    said = f"width {width} of {hidden}" + (f": one rank of {hidden // width}" if hidden % width == 0 else "")
    if len(captures) * width == hidden and len({capture.counts for capture in captures}) == 1 and reference.sketches.shape[0] == 1:
        whole = torch.cat(parts, dim=-1)
        found = locate(reference, _rows(whole, captures[0], 0, hidden))
        return found.because("columns scattered", f"{said}; together the ranks hold the state")
    if reference.sketches.shape[0] * width == hidden:
        blocks = range(reference.sketches.shape[0])
        tried = [locate(reference, _rows(parts[0], captures[0], block * width, hidden), block) for block in blocks]
        best = min(blocks, key=lambda block: tried[block].distance)
        return tried[best].because("columns scattered", f"{said}, columns from {best * width}")
    remedy = "; all ranks' files together, or --target, would tell which state" if hidden % width == 0 else ""
    return NOTHING.because("columns scattered", said + remedy)


def _scattered(reference: Reference, captures: Sequence[Capture], parts: list[torch.Tensor]) -> Match | None:
    """Ranks that hold rows: laid one after the other, sequence by sequence, they are the whole in some order."""
    if len(captures[0].counts) != 1:
        return None
    total = sum(map(len, parts))
    rows = Rows(sketch_columns(torch.cat(parts), 0, reference.hidden_size), (total,), (torch.cat(parts) == 0).all(-1))
    if not reference.lengths[0] <= total < reference.lengths[0] + 2 * len(parts):
        return None
    found = locate(reference, rows)
    if not found.certain:
        return None
    return found.because("rows scattered", f"over {len(parts)} ranks: {found.detail or 'consecutive rows'}")


def _summed(reference: Reference, rows: Sequence[Rows]) -> Match | None:
    """Shares of a sum. Each branch is tried with its own residual, and the plain sum with every state."""
    if len({row.counts for row in rows}) != 1:
        return None
    order = next(row_orders(reference.lengths, rows[0].counts), None)
    if order is None or order.kind != "in order":
        return None
    total_NK = torch.stack([row.sketches for row in rows]).sum(0)
    nowhere = torch.zeros_like(rows[0].zero_N)
    distance_S = place_distances(reference, Rows(total_NK, rows[0].counts, nowhere), order)
    if distance_S is None:
        return None
    plain = nearest(distance_S, "partial", "the ranks' states sum to it: read before the all-reduce")
    if reference.state_names[plain.state] == "boundary:0" and any(bool(row.zero_N.any()) for row in rows):
        plain = plain.because("embedding not reduced", "the ranks' rows sum to it: a vocabulary-parallel embedding before its all-reduce")
    best = min([plain, *_with_residual(reference, total_NK, rows, order)], key=lambda match: match.distance)
    return best if best.distance < NO_MATCH and best.ratio <= DECISIVE else None


def _with_residual(reference: Reference, total_NK: torch.Tensor, rows: Sequence[Rows], order: RowOrder) -> list[Match]:
    matches = []
    known_N = order.rows.clamp_min(0)
    for before, after in reference.branches():
        state_NK = total_NK - (len(rows) - 1) * reference.sketches[0][before][known_N]
        distance_S = place_distances(reference, Rows(state_NK, rows[0].counts, torch.zeros_like(rows[0].zero_N)), order)
        if distance_S is not None and int(distance_S.argmin()) == after:
            start = state_tap(reference.state_names[before])
            detail = f"each of {len(rows)} ranks holds {start} and its own share of the next branch, before the all-reduce"
            matches.append(nearest(distance_S, "partial", detail))
    return matches
