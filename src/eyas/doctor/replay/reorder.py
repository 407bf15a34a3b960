"""Whether fewer changes mend a draft as well if another one is tried first: what was found early may have stood in for the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.doctor.hypothesis import Fault, Hypothesis, Tested
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.subject import Subject

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_NATS = 0.05  # changes that nobody made still find a little: of two stories as accurate, the one with fewer faults is told


@dataclass(frozen=True)
class Order:
    """What is found if causes are tested in this order, from the draft as it came."""

    tested: list[Tested]
    steps: list[tuple[Fault, Subject, Subject]]
    subject: Subject
    measured: dict[str, Any]


def try_orders(exam: Examination, bench: Bench, mending: Sequence[Hypothesis], test: Callable[[Hypothesis], Tested]) -> list[Tested]:
    """Test those that mended something once more, each of them first.

    Returns what was found in the order that needs the fewest changes and leaves the draft at least as good, with the draft on the
    bench mended so; nothing if that is the order they were tested in.
    """
    mended = [fault for fault, _, _ in bench.steps]
    others = [fault for fault in exam.faults if all(fault is not one for one in mended)]
    held, best = exam.faults, Order([], bench.steps, bench.subject, dict(exam.measured))
    for item in mending[1:]:
        found = _tested(exam, bench, others, [item, *(one for one in mending if one is not item)], test)
        if len(found.steps) < len(best.steps) and found.steps and bench.as_good(found.subject, best.subject, _NATS):
            best = found
    exam.faults, bench.steps, bench.subject = held, best.steps, best.subject
    exam.measured = best.measured
    bench.note()
    return best.tested


def _tested(
    exam: Examination, bench: Bench, others: Sequence[Fault], order: Sequence[Hypothesis], test: Callable[[Hypothesis], Tested]
) -> Order:
    exam.faults, bench.steps, bench.subject = list(others), [], bench.given
    tested = []
    for item in order:
        tested.append(test(item))
        exam.faults += tested[-1].outcome.faults
    return Order(tested, bench.steps, bench.subject, dict(exam.measured))
