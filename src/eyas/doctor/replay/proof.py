"""Whether what was mended proves anything: a draft that was hardly trained gains by many a change that nobody made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Fault, percent
from eyas.doctor.verdict import proves_nothing

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.bench import Bench

_PARTS = "weights-untrained"
_NOTHING = 0.01  # right on so few rows a draft is not mended, however its log-probabilities moved


def withdraw_unproven(exam: Examination, bench: Bench, late: list[Fault]) -> tuple[list[Fault], str]:
    """Take back all changes if nothing but the replay speaks for a fault, and with all of them the draft is far below a table of which
    token follows which. Another fault, such as a wrong teacher, may be what keeps it there: then they stand, unless the draft is
    right on next to nothing.

    Args:
        late: faults that were found on the draft as it was mended; of these, parts that do harm speak for nothing else.

    Returns what they were said to mend, and why it is taken back.
    """
    accuracy, table = float(exam.measured["accuracy"]), float(exam.measured["pair_table_accuracy"])
    mended = [fault for fault, _, _ in bench.steps]
    unproven = mended + [fault for fault in late if fault.code == _PARTS]
    others = [fault for fault in exam.faults if all(fault is not one for one in unproven)]
    if not mended or (others and accuracy >= _NOTHING) or not proves_nothing(exam, accuracy):
        return [], ""
    bench.subject = bench.given
    bench.note()
    why = f"with all that was mended it is right on {percent(accuracy)} of the rows, and a mere table of which token follows which"
    return unproven, f"{why} on {percent(table)}: that proves no training under other wiring"
