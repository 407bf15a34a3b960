"""Accuracy with every state in every slot, the others as they are: where a wrong slot is, and what it wants, at a glance."""

from __future__ import annotations

import dataclasses
from typing import Any

from eyas.doctor.examination import Examination


def slot_matrix(exam: Examination) -> dict[str, Any] | None:
    """First-token accuracy on the search rows, by slot and state, of the draft as it was mended; None without a replay."""
    if exam.exhibits.draft is None or exam.exhibits.target is None or exam.bench is None:
        return None
    bench = exam.bench
    subject, states = bench.subject, bench.evidence.taps
    accuracy = []
    for slot in range(len(subject.taps)):
        row = []
        for tap in states:
            taps = (*subject.taps[:slot], tap, *subject.taps[slot + 1 :])
            row.append(round(bench.screened(dataclasses.replace(subject, taps=taps)).accuracy, 4))
        accuracy.append(row)
    return {"boundaries": [str(tap) for tap in states], "accuracy": accuracy}
