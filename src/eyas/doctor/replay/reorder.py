"""Whether fewer changes mend a draft as well if another one is tried first: what was found early may have stood in for the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Fault, Hypothesis, Outcome
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.subject import Subject

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_NATS = 0.05  # changes that nobody made still find a little: of two stories as accurate, the one with fewer faults is told


@dataclass(frozen=True)
class Order:
    """What is found if `outcomes` is tested in its order, from the draft as it came."""

    outcomes: dict[Hypothesis, Outcome]
    steps: list[tuple[Fault, Subject, Subject]]
    subject: Subject


def try_orders(exam: Examination, bench: Bench, mending: Sequence[Hypothesis]) -> dict[Hypothesis, Outcome]:
    """Test those that mended something once more, each of them first.

    Returns the outcomes of the order that needs the fewest changes and leaves the draft at least as good, with the draft on the
    bench mended so; nothing if that is the order they were tested in.
    """
    first = Order({}, bench.steps, bench.subject)
    mended = [fault for fault, _, _ in bench.steps]
    others = [fault for fault in exam.faults if all(fault is not one for one in mended)]
    held, best = exam.faults, first
    for item in mending[1:]:
        found = _tested(exam, bench, others, [item, *(one for one in mending if one is not item)])
        if len(found.steps) < len(best.steps) and found.steps and bench.as_good(found.subject, best.subject, _NATS):
            best = found
    exam.faults, bench.steps, bench.subject = held, best.steps, best.subject
    bench.note()
    return best.outcomes


def _tested(exam: Examination, bench: Bench, others: Sequence[Fault], order: Sequence[Hypothesis]) -> Order:
    exam.faults, bench.steps, bench.subject = list(others), [], bench.given
    outcomes = {}
    for item in order:
        outcomes[item] = item.run(exam)
        exam.faults += outcomes[item].faults
    return Order(outcomes, bench.steps, bench.subject)
