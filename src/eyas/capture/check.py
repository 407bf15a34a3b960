"""`eyas trace check`: for each slot of captured states, the state of the target that it really holds, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from eyas.capture.fingerprint import MIN_POSITIONS
from eyas.capture.locate import NO_MATCH, Match
from eyas.capture.ranks import Capture, match_ranks
from eyas.capture.reference import Reference, state_tap
from eyas.errors import UserError
from eyas.taps import Tap

__all__ = ["Capture", "CheckReport", "SlotVerdict", "check_captures", "with_exchanges"]
_WHOLE = ("off by one", "another state", "normed", "not normed")  # a whole state in its own rows, but not the one expected


@dataclass(frozen=True)
class SlotVerdict:
    """`found` is None where no state is near enough. `next_best` is the runner-up's distance."""

    slot: int
    expected: str | None
    found: str | None
    distance: float | None
    next_best: float | None
    next_best_state: str | None
    verdict: str
    detail: str

    @property
    def ok(self) -> bool:
        return self.verdict == "right"

    def text(self) -> str:
        numbers = (
            "" if self.distance is None else f" (distance {self.distance:.3g}; next best {self.next_best:.3g}, {self.next_best_state})"
        )
        held = f"holds {self.found}" if self.found else "holds none of the target's states"
        expected = "" if self.expected is None or self.expected == self.found else f", expected {self.expected}"
        said = f": {self.verdict}" + (f" ({self.detail})" if self.detail else "")
        return f"slot {self.slot} {held}{numbers}{expected}{said}"


@dataclass(frozen=True)
class CheckReport:
    slots: tuple[SlotVerdict, ...]

    @property
    def ok(self) -> bool:
        return all(slot.ok for slot in self.slots)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "slots": [asdict(slot) for slot in self.slots]}


def check_captures(reference: Reference, captures: Sequence[Capture], expected: Sequence[Tap] | None) -> CheckReport:
    """Judge every slot. Where nothing is `expected`, any of the target's states in the right rows is right.

    Raises UserError for captures of other tokens or shapes than each other's, too few positions, or another number of slots.
    """
    _check_shapes(captures, expected)
    names: list[str | None] = [str(tap) for tap in expected or ()]
    names += [None] * (captures[0].num_slots - len(names))  # what came along beside the draft's inputs
    return CheckReport(tuple(_judge(reference, captures, slot, name) for slot, name in enumerate(names)))


def with_exchanges(report: CheckReport) -> CheckReport:
    """The same, with two slots that hold each other's state said to be exchanged: one by one they look off by one, or anything."""
    at = {slot.expected: slot for slot in report.slots if slot.expected is not None}

    def named(slot: SlotVerdict) -> SlotVerdict:
        other = None if slot.found is None or slot.verdict not in _WHOLE else at.get(slot.found)
        if other is None or other.verdict not in _WHOLE or other.found != slot.expected:
            return slot
        return replace(slot, verdict="exchanged", detail=f"with slot {other.slot}")

    return CheckReport(tuple(map(named, report.slots)))


def _check_shapes(captures: Sequence[Capture], expected: Sequence[Tap] | None) -> None:
    first = captures[0]
    for other in captures[1:]:
        if other.token_ids != first.token_ids or (other.num_slots, other.width) != (first.num_slots, first.width):
            raise UserError(
                f"{first.source} and {other.source} are not ranks of one capture",
                got=f"{other.num_slots} slots of width {other.width}, {sum(map(len, other.token_ids))} tokens",
                allowed=f"{first.num_slots} slots of width {first.width}, the very same {sum(map(len, first.token_ids))} tokens",
            )
    if len(expected or ()) > first.num_slots:
        raise UserError(f"{first.source} has fewer slots than expected", got=first.num_slots, allowed=[str(tap) for tap in expected or ()])
    positions = sum(map(len, first.token_ids))
    if positions < MIN_POSITIONS:
        raise UserError(f"{first.source}: too few positions for a verdict", got=positions, allowed=f"at least {MIN_POSITIONS} of real text")


def _judge(reference: Reference, captures: Sequence[Capture], slot: int, expected: str | None) -> SlotVerdict:
    parts = [capture.slot(slot) for capture in captures]
    bad = next(((rank, (~torch.isfinite(part)).any(-1)) for rank, part in enumerate(parts) if not bool(torch.isfinite(part).all())), None)
    if bad is not None:
        rank, bad_N = bad
        where = (
            f"{captures[rank].source}: NaN or infinity in {int(bad_N.sum())} of {len(bad_N)} rows, first in row {int(bad_N.nonzero()[0])}"
        )
        return SlotVerdict(slot, expected, None, None, None, None, "not finite", where)
    match = match_ranks(reference, captures, parts)
    return _worded(reference, match, slot, expected)


def _worded(reference: Reference, match: Match, slot: int, expected: str | None) -> SlotVerdict:
    names = [state_tap(name) for name in reference.state_names]
    if match.distance == float("inf"):
        return SlotVerdict(slot, expected, None, None, None, None, match.problem or "unknown", match.detail)
    found: str | None = names[match.state]
    verdict, detail = match.problem, match.detail
    if verdict is None and not match.certain:
        hint = "" if reference.normed else "; --target would tell whether it went through one more norm"
        verdict, detail, found = "unknown", f"nearest is {found}, but not by enough{hint}", found if match.distance < NO_MATCH else None
    elif verdict is not None and match.distance >= NO_MATCH:
        detail, found = f"{detail}; which state it is cannot be told", None
    elif verdict is None:
        verdict, detail = _compare(str(found), expected, reference)
    return SlotVerdict(
        slot, expected, found, match.distance, match.runner_up_distance, names[match.runner_up], verdict or "unknown", detail
    )


def _compare(found: str, expected: str | None, reference: Reference) -> tuple[str, str]:
    """A whole state in its own rows: is it the one expected, or how does it differ?"""
    last = max(int(name.split(":")[1]) for name in reference.state_names if name.startswith("boundary:"))
    if expected is None:
        return ("right", "") if not found.startswith("mid:") else ("another state", _mid(found))
    if found == expected:
        return "right", ""
    if found.startswith("mid:"):
        return "another state", _mid(found)
    if found == "final" or expected == "final":
        if {found, expected} == {"final", str(Tap(last))}:
            return ("normed", "the final norm was applied") if found == "final" else ("not normed", "the final norm was not applied")
        return "another state", ""
    difference = (Tap.parse(found).boundary or 0) - (Tap.parse(expected).boundary or 0)
    if abs(difference) == 1:
        return "off by one", "one side counts a layer's input, the other its output"
    return "another state", ""


def _mid(found: str) -> str:
    return f"the residual of layer {found.split(':')[1]} between attention and MLP"
