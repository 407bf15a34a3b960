"""Samples, and rows of samples, whose states or labels are not those of their own texts, as after a request that overtook another one.

What a slot holds is judged by the median of all rows, which a few samples, or a few rows of each, do not move. So here each is asked by
itself.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed
from eyas.doctor.replay.own_runs import Apart

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_NEAR = 0.1  # distance of states from those of their text, as rounding and quantising leave them
_FAR_ROWS = 0.25  # of a sample
_SOME_ROWS = 0.08  # of all: more than experts that are chosen otherwise at a tie
_IN_A_ROW = 8  # of one sample: such experts stand alone
_FEWEST = 5
_AGAIN = "capture these samples again, one request at a time, and compare: eyas capture takes each text's own states"


def strange_states(exam: Examination) -> Outcome | None:
    """None if every sample asked has its own states and labels, if most have not (which is another fault), or without a whole target."""
    if not exam.own_runs:
        return None
    states = {exam.samples[run.place].id: run.apart for run in exam.own_runs if run.apart is not None}
    labels = {exam.samples[run.place].id: run.labels_apart for run in exam.own_runs if run.labels_apart is not None}
    faults = [_of_some_samples("states", states), _of_some_samples("labels' states", labels)]
    if faults[0] is None and isinstance(exam.slot_verdicts, tuple) and all(slot.ok for slot in exam.slot_verdicts):
        faults[0] = _of_some_rows("states", states)
    faults[1] = faults[1] or _of_some_rows("labels' states", labels)
    found = [fault for fault in faults if fault is not None]
    return confirmed(*found) if found else None


def _of_some_samples(what: str, shares: dict[str, Apart]) -> Fault | None:
    bad = [name for name, item in shares.items() if item.far > _FAR_ROWS]
    usual = _usual(shares)
    if len(shares) < _FEWEST or not bad or usual > _NEAR or len(bad) > 0.5 * len(shares):
        return None
    distance, far, _ = shares[bad[0]]
    text = f"{len(bad)} of {len(shares)} samples, such as {bad[0]}, hold {what} that are not those of their own tokens"
    text += f" ({100 * far:.0f} % of its rows are far, at a median distance of {distance:.2g}; usual is {usual:.2g})"
    return _fault(what, text, {"samples": len(shares), "odd": len(bad), "distance": distance, "usual": usual})


def _of_some_rows(what: str, shares: dict[str, Apart]) -> Fault | None:
    usual = _usual(shares)
    far = fmean(item.far for item in shares.values()) if shares else 0.0
    worst = max(shares, key=lambda name: shares[name].longest, default="")
    if len(shares) < _FEWEST or usual > _NEAR or (far < _SOME_ROWS and shares[worst].longest < _IN_A_ROW):
        return None
    text = f"{100 * far:.1f} % of the rows of {len(shares)} samples hold {what} that are not those of their own tokens,"
    text += f" in {worst} {shares[worst].longest} rows one behind the other"
    return _fault(what, f"{text}; the others are at a distance of {usual:.2g}", {"samples": len(shares), "far": far, "usual": usual})


def _usual(shares: dict[str, Apart]) -> float:
    return median(item.distance for item in shares.values()) if shares else 1.0


def _fault(what: str, text: str, numbers: dict[str, float]) -> Fault:
    covers = () if what == "states" else ("target-changed",)  # by the head and such labels the target seems another
    return Fault("dump-other-rows", "dump", (Evidence(text, numbers),), _AGAIN, 0.83, covers=covers)
