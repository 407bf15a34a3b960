"""In which order a capture's rows may stand against the positions they should hold: shifts, and the orders of context parallelism.

An order is a guess about a whole sequence: row i of what was captured holds position `rows[i]`, or none (-1). It is
tried before any row is matched by its looks, because rows of equal tokens look alike.

    shifted by +1     row p holds the state of position p+1
    zig-zag, cp ranks   the sequence in 2·cp blocks; rank r keeps blocks r and 2·cp-1-r; ranks one after the other
    round robin, cp     position i on rank i mod cp; ranks one after the other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

RowKind = Literal["in order", "shifted", "permuted", "scattered"]
MAX_SHIFT = 8
_RANKS = (2, 4, 8, 16)


@dataclass(frozen=True)
class RowOrder:
    """`rows`: for every captured row of all sequences together, the position (of all sequences together) that it holds; -1 for none."""

    kind: RowKind
    what: str
    rows: torch.Tensor


Builder = Callable[[int, int], torch.Tensor | None]  # (positions, captured rows) of one sequence


def row_orders(lengths: Sequence[int], counts: Sequence[int]) -> Iterator[RowOrder]:
    """Every order that fits `counts` captured rows of sequences of `lengths` positions; `in order` first."""
    for kind, what, builder in _builders(lengths, counts):
        parts = [builder(length, count) for length, count in zip(lengths, counts, strict=True)]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
            moved = [torch.where(part < 0, part, part + start) for part, start in zip(found, starts, strict=False)]
            yield RowOrder(kind, what, torch.cat(moved))


def zig_zag(length: int, ranks: int) -> list[torch.Tensor]:
    """The positions that each of `ranks` keeps."""
    blocks = torch.arange(length).tensor_split(2 * ranks)
    return [torch.cat([blocks[rank], blocks[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def round_robin(length: int, ranks: int) -> list[torch.Tensor]:
    return [torch.arange(rank, length, ranks) for rank in range(ranks)]


def _builders(lengths: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[RowKind, str, Builder]]:
    if all(count >= length for count, length in zip(counts, lengths, strict=True)):
        yield "in order", "in order", _shift(0)
        for size in range(1, MAX_SHIFT + 1):
            for by in (size, -size):
                yield "shifted", f"by {by:+d}: row p holds the state of position p{by:+d}", _shift(by)
        for ranks in _RANKS:
            for name, split in (("zig-zag", zig_zag), ("round-robin", round_robin)):
                yield "permuted", f"{name} order of {ranks} ranks, one rank after the other", _joined(split, ranks, inverse=False)
                yield "permuted", f"put back by the inverse of the {name} order of {ranks} ranks", _joined(split, ranks, inverse=True)
    if all(count < length for count, length in zip(counts, lengths, strict=True)):
        for ranks in _RANKS:
            for rank in range(ranks):
                yield "scattered", f"only the rows of rank {rank} of {ranks}, zig-zag", _share(zig_zag, ranks, rank)
                yield "scattered", f"only the rows of rank {rank} of {ranks}, round robin", _share(round_robin, ranks, rank)
        for start in range(min(lengths)):
            yield "scattered", f"only the rows from position {start} on", _window(start)


def _shift(by: int) -> Builder:
    def build(length: int, count: int) -> torch.Tensor:
        rows = torch.arange(count) + by  # rows beyond the sequence are the padding of a shard
        return torch.where((rows >= 0) & (rows < length), rows, -1)

    return build


def _joined(split: Callable[[int, int], list[torch.Tensor]], ranks: int, inverse: bool) -> Builder:
    def build(length: int, count: int) -> torch.Tensor | None:
        if length < 2 * ranks or count not in (length, _padded(length, ranks)):
            return None
        rows = torch.cat(split(count, ranks))
        return _without_padding(rows.argsort() if inverse else rows, length)

    return build


def _share(split: Callable[[int, int], list[torch.Tensor]], ranks: int, rank: int) -> Builder:
    def build(length: int, count: int) -> torch.Tensor | None:
        if length < 2 * ranks:
            return None
        parts = (split(total, ranks)[rank] for total in (length, _padded(length, ranks)))
        return next((_without_padding(part, length) for part in parts if len(part) == count), None)

    return build


def _padded(length: int, ranks: int) -> int:
    """Servers pad a sequence until all of its blocks are equal."""
    return -(-length // (2 * ranks)) * 2 * ranks


def _without_padding(rows: torch.Tensor, length: int) -> torch.Tensor:
    return torch.where(rows < length, rows, -1)


def _window(start: int) -> Builder:
    return lambda length, count: torch.arange(start, start + count) if start + count <= length else None
