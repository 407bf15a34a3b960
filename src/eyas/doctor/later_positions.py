"""Positions that a draft is asked to propose beyond the steps that it was trained for: by what a server counted, do they hold up?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, suspected
from eyas.doctor.readings import Reading

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_FEWEST = 30  # rounds that must have come to a position
_HELD = 0.5  # of the last trained position's rate: below that a later one is a guess


def later_positions(exam: Examination, steps: int, proposed: int) -> Outcome | None:
    """A fault if the positions behind the first `steps` have fallen; None if no reading counted them often enough."""
    from eyas.doctor.reported import readings

    text = f"the server proposes {proposed} tokens a round, and the draft was trained for {steps}"
    counted = [(reading, have) for reading in readings(exam) if (have := fallen(reading, steps)) is not None]
    if not counted:
        return None
    reading, have = counted[0]
    rates = [item.value for item in reading.conditional if item is not None and item.value is not None]
    shown = f"{', '.join(percent(rate) for rate in rates)} by position, of the rounds that came so far"
    numbers = {"trained": steps, "proposed": proposed, "rates": rates}
    if have:
        evidence = Evidence(f"{text}: later ones are accepted less, {shown}", numbers)
        return confirmed(Fault("train-steps", "draft", (evidence,), f"propose {steps}, or train with --ttt-steps {proposed}", 0.5))
    return suspected(f"{text}; its later positions are no guesses all the same: {shown}", **numbers)


def fallen(reading: Reading, steps: int) -> bool | None:
    """Whether a position behind the first `steps` is accepted less than half as often as the last of these, and beyond chance.

    None if that was not counted, or in too few rounds.
    """
    rates = [None if item is None else item.value for item in reading.conditional]
    before = [1.0, *(item.value or 0.0 for item in reading.unconditional)]
    if not 1 <= steps < len(rates) or any(rate is None for rate in rates) or (reading.rounds or 0.0) * before[len(rates) - 1] < _FEWEST:
        return None
    last = rates[steps - 1] or 0.0
    return any(item is not None and (item.value or 0.0) < _HELD * last and item.high < last for item in reading.conditional[steps:])
