"""The doctor on one planted set, and the grade it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eyas.doctor import diagnose
from eyas.doctor.catalog import CATALOG
from eyas.doctor.exhibits import Options
from eyas.doctor.hypothesis import Diagnosis
from eyas.errors import UserError
from seeded.equivalents import accepted
from seeded.healthy import Healthy
from seeded.pairs import Pair
from seeded.registry import Fault
from seeded.sets import Set

ROWS = 1200  # of real text: enough for the differences that a planted fault makes in a tiny set


@dataclass(frozen=True)
class Grade:
    """`right`: the cause is named, in its kind and by its code. `told`: what the doctor said, in order.

    seconds: of the examination, without the planting; None if it refused.
    """

    right_kind: bool
    right_code: bool
    told: tuple[str, ...]
    verdict: str
    seconds: float | None = None

    @property
    def right(self) -> bool:
        return self.right_kind and self.right_code

    def words(self) -> str:
        return f"{self.verdict}: {', '.join(self.told) or 'nothing'}"


def grade_fault(fault: Fault, s: Set, rows: int = ROWS) -> Grade:
    """Only the first finding counts."""
    found = _examine(fault.plant, s, fault.depths, rows, fault)
    if found is None:
        return Grade(False, False, ("exit 2",), "refused")
    told = tuple(item.code for item in found.findings)
    codes = accepted(fault.code)
    kinds = {CATALOG[code].kind for code in codes}
    first = found.findings[0] if found.findings else None
    right_kind = first is not None and first.kind in kinds
    return Grade(right_kind and found.verdict == "fault", first is not None and first.code in codes, told, found.verdict, found.seconds)


def grade_pair(pair: Pair, s: Set, rows: int = ROWS) -> Grade:
    """Both causes are among the findings, in any order."""
    found = _examine(pair.plant, s, pair.depths, rows)
    if found is None:
        return Grade(False, False, ("exit 2",), "refused")
    told = tuple(item.code for item in found.findings)
    by_code = all(accepted(code) & set(told) for code in pair.codes)
    kinds = {item.kind for item in found.findings}
    by_kind = all(kinds & {CATALOG[one].kind for one in accepted(code)} for code in pair.codes)
    return Grade(by_kind, by_code, told, found.verdict, found.seconds)


def grade_healthy(item: Healthy, s: Set, rows: int = ROWS) -> Grade:
    found = _examine(item.plant, s, item.depths, rows)
    if found is None:
        return Grade(False, False, ("exit 2",), "refused")
    right = found.verdict in item.verdicts and not found.findings
    return Grade(right, right, tuple(finding.code for finding in found.findings), found.verdict, found.seconds)


def _examine(plant: Callable[[Set], Set], s: Set, depths: tuple[str, ...], rows: int, fault: Fault | None = None) -> Diagnosis | None:
    """None if the doctor refuses the exhibits, which it may only for those that do not exist."""
    planted = plant(s)
    try:
        if fault is None:
            return diagnose(planted.exhibits(), Options(depths=depths, rows=rows))
        with fault.patch():
            return diagnose(planted.exhibits(), Options(depths=depths, rows=rows))
    except UserError:
        return None
