"""Values of a dump's states by themselves: NaN, infinity and absurd lengths; rows and columns that are empty, and whose share they are.

A rank that never got the others' rows or columns leaves the same part of every sample empty; a prefix cache leaves the
beginning of some.

Shapes: T positions, W columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_AGAIN = "copy the dump again from where it was made; if it was made so, capture again"
_GATHER = "gather rows and columns of all ranks before they are written; eyas capture does"
_ABSURD, _TINY = 1e5, 1e-3  # times the usual size of a row
_COLUMNS = 1 / 16  # of a state, from which on empty columns are a rank's
_WEIGHTS = {"dump-not-finite": 0.86, "dump-empty-rows": 0.84, "states-scattered": 0.92}
_COVERS: dict[str, tuple[str, ...]] = {
    "dump-not-finite": ("dump-other-rows",),
    "dump-empty-rows": ("context-lost", "dump-other-rows"),
    "states-scattered": ("dump-other-rows", "states-partial", "taps-other", "norm-state", "dump-empty-rows"),
}


@dataclass
class _Seen:
    """places: texts by code. empty: per sample with empty rows, their share. columns: the largest value of each, by tensor."""

    places: dict[str, list[str]] = field(default_factory=dict)
    empty: list[float] = field(default_factory=list)
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    rows: int = 0

    def add(self, code: str, text: str) -> None:
        self.places.setdefault(code, []).append(text)


def check_values(exam: Examination) -> Outcome:
    """In states and in the labels' state of every sample that was read."""
    seen = _Seen()
    for sample in exam.samples:
        for name, tensor in (("states", sample.states), ("the labels' state", sample.teacher)):
            if tensor is not None and tensor.numel():
                _look(seen, sample.id, name, tensor.float())
    found = dict(seen.places)
    if _one_share(seen.empty, len(exam.samples)):
        found["states-scattered"] = [f"the same share of every sample: {text}" for text in found.pop("dump-empty-rows")]
    columns = list(_empty_columns(exam, seen))
    if columns:
        found["states-scattered"] = [*columns, *found.get("states-scattered", [])]
    faults = [_fault(code, texts, len(exam.samples)) for code, texts in found.items()]
    return confirmed(*faults) if faults else ruled_out(f"{seen.rows} rows are finite, none is empty, none absurd")


def _fault(code: str, texts: list[str], count: int) -> Fault:
    evidence = (*(Evidence(text) for text in texts[:3]), Evidence(f"{len(texts)} places in {count} samples"))
    scattered = code == "states-scattered"
    return Fault(code, "dump", evidence, _GATHER if scattered else _AGAIN, _WEIGHTS[code], covers=_COVERS[code])


def _look(seen: _Seen, sample: str, name: str, values_TW: torch.Tensor) -> None:
    seen.rows += len(values_TW)
    norms_T = values_TW.norm(dim=-1)
    bad_T = ~torch.isfinite(norms_T)
    usual = float(norms_T[~bad_T].median()) if bool((~bad_T).any()) else 0.0
    huge_T = ~bad_T & (norms_T > _ABSURD * max(usual, 1e-6))
    zero_T = norms_T <= _TINY * usual
    if bool(bad_T.any()):
        where = f"in {int(bad_T.sum())} rows, first in row {int(bad_T.nonzero()[0])}"
        seen.add("dump-not-finite", f"{sample}: {name} hold NaN or infinity {where}")
    if bool(huge_T.any()):
        where = f"in row {int(huge_T.nonzero()[0])}, usual is {usual:.3g}"
        seen.add("dump-not-finite", f"{sample}: {name} reach {float(norms_T[~bad_T].max()):.3g} {where}")
    if bool(zero_T.any()):
        where = f"{int(zero_T.sum())} of {len(zero_T)} rows of {name} are zero or nearly so, first row {int(zero_T.nonzero()[0])}"
        seen.add("dump-empty-rows", f"{sample}: {where}")
        seen.empty.append(float(zero_T.float().mean()))
    largest_W = values_TW.nan_to_num(1.0).abs().amax(0)
    held_W = seen.columns.get(name)
    seen.columns[name] = torch.maximum(held_W, largest_W) if held_W is not None and held_W.shape == largest_W.shape else largest_W


def _one_share(shares: list[float], count: int) -> bool:
    """Whether nearly all samples lack the same share, as they do if a rank's rows are missing from each."""
    if len(shares) < max(3, 0.9 * count):
        return False
    middle = sorted(shares)[len(shares) // 2]
    return middle > 0.2 and sum(abs(share - middle) < 0.08 for share in shares) > 0.9 * len(shares)


def _empty_columns(exam: Examination, seen: _Seen) -> Iterator[str]:
    """By slot. A residual stream has no column that is exactly 0 in every row of real text."""
    taps = exam.samples[0].taps if exam.samples else None
    for name, largest_W in seen.columns.items():
        slots = len(taps) if taps and name == "states" and len(largest_W) % len(taps) == 0 else 1
        for slot, part in enumerate(largest_W.chunk(slots)):
            empty = (part == 0).nonzero().flatten()
            if _COLUMNS * len(part) <= len(empty) < len(part):
                where = f"columns {int(empty[0])} to {int(empty[-1])}" if len(empty) > 1 else f"column {int(empty[0])}"
                yield f"{len(empty)} of {len(part)} columns of slot {slot} of {name} are empty in every row ({where})"
