"""What the doctor thinks in: a claim about a cause, the test that decides it, and what came of it.

Everything here is a frozen value that goes to JSON; nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from eyas.doctor.catalog import UNREACHABLE, entry

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

FORMAT = 1

Depth = Literal["static", "weights", "replay", "live"]
DEPTHS: tuple[Depth, ...] = ("static", "weights", "replay", "live")
Judgement = Literal["confirmed", "ruled out", "suspected", "cannot be tested"]
Verdict = Literal["healthy", "fault", "weak-draft", "inconclusive"]


@dataclass(frozen=True)
class Evidence:
    """One observation: a sentence that names the values, and the values themselves."""

    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "numbers": {name: plain(value) for name, value in self.numbers.items()}}


@dataclass(frozen=True)
class Fault:
    """A test found this. `subject` is what has it (the draft, the dump, ...).

    weight: how well it explains a low acceptance, 0 to 1: findings are listed by it.
    shadow: codes nearer to the cause: if one of them is found about the same subject, this one is told as a part of it.
    covers: codes that only follow from this one, or say the same less exactly: if one is found, it is told as a part of this.
    verified: the remedy was applied in memory and measured.
    """

    code: str
    subject: str
    evidence: tuple[Evidence, ...]
    remedy: str
    weight: float = 0.5
    verified: bool = False
    shadow: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a test says. `faults` are given with "confirmed" only; `reason` with "cannot be tested" only.

    overrules: subjects and codes that a test before this one confirmed by what it read, and that this measurement disproves.
    """

    judgement: Judgement
    evidence: tuple[Evidence, ...] = ()
    faults: tuple[Fault, ...] = ()
    reason: str = ""
    overrules: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert bool(self.faults) == (self.judgement == "confirmed"), self


@dataclass(frozen=True)
class Hypothesis:
    """A claim that a test can decide.

    Args:
        code: of the catalogue; its kind and title come from there.
        needs: what must have been given: target, layers, draft, dump, data, engine, metrics, log.
        test: in words; `run` is the test itself.
        prediction: what the test shows if the claim is true.
        prior: how often this is the cause, 0 to 1; signatures raise and lower it.
        seconds: what the test costs on a small target, about.
        last: whether it asks what is left when all that can be mended is mended.
    """

    code: str
    depth: Depth
    claim: str
    needs: tuple[str, ...]
    test: str
    prediction: str
    run: Callable[[Examination], Outcome]
    prior: float = 0.1
    seconds: float = 0.0
    last: bool = False

    @property
    def kind(self) -> str:
        return entry(self.code).kind

    @property
    def title(self) -> str:
        return entry(self.code).title


@dataclass(frozen=True)
class Tested:
    """A hypothesis with its outcome; `seconds` is what the test took."""

    hypothesis: Hypothesis
    outcome: Outcome
    seconds: float

    def to_json(self) -> dict[str, Any]:
        asked, outcome = self.hypothesis, self.outcome
        return {
            "code": asked.code,
            "kind": asked.kind,
            "title": asked.title,
            "depth": asked.depth,
            "claim": asked.claim,
            "test": asked.test,
            "prediction": asked.prediction,
            "needs": list(asked.needs),
            "verdict": outcome.judgement,
            "evidence": [item.to_json() for item in outcome.evidence],
            "reason": outcome.reason or None,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Finding:
    """A fault as it is told to the user."""

    code: str
    kind: str
    title: str
    subject: str
    evidence: tuple[Evidence, ...]
    remedy: str
    verified: bool
    weight: float

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "kind": self.kind,
            "title": self.title,
            "subject": self.subject,
            "evidence": [item.to_json() for item in self.evidence],
            "remedy": self.remedy,
            "verified": self.verified,
            "page": f"docs/doctor/{self.code}.md",
        }


@dataclass(frozen=True)
class Slot:
    """One slot of the draft: what it should be fed, and what was found that it is, or wants to be, fed."""

    slot: int
    expected: str | None
    found: str | None

    def to_json(self) -> dict[str, Any]:
        return {"slot": self.slot, "expected": self.expected, "found": self.found, "ok": self.found in (None, self.expected)}


@dataclass(frozen=True)
class Diagnosis:
    """All that the doctor says.

    `measured`: figures of the replay, by name; `signature`: what the reported figures suggest.

    `next_steps`: exhibits that would decide what is open.
    """

    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    tested: tuple[Tested, ...]
    slots: tuple[Slot, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    signature: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exhibits: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_status(self) -> int:
        return 1 if self.verdict == "fault" else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "doctor_format": FORMAT,
            "verdict": self.verdict,
            "summary": self.summary,
            "findings": [finding.to_json() for finding in self.findings],
            "hypotheses": [item.to_json() for item in self.tested],
            "slots": [slot.to_json() for slot in self.slots],
            "measured": {name: plain(value) for name, value in self.measured.items()},
            "signature": list(self.signature),
            "next": list(self.next_steps),
            "notes": list(self.notes),
            "out_of_reach": dict(UNREACHABLE),
            "exhibits": {name: plain(value) for name, value in self.exhibits.items()},
            "seconds": round(self.seconds, 2),
        }


def confirmed(*faults: Fault) -> Outcome:
    return Outcome("confirmed", tuple(item for fault in faults for item in fault.evidence), faults)


def ruled_out(text: str, **numbers: Any) -> Outcome:
    return Outcome("ruled out", (Evidence(text, numbers),))


def suspected(text: str, **numbers: Any) -> Outcome:
    return Outcome("suspected", (Evidence(text, numbers),))


def untestable(reason: str) -> Outcome:
    return Outcome("cannot be tested", reason=reason)


def plain(value: Any) -> Any:
    """A value as JSON has it: no NaN, no tuples, no objects."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
