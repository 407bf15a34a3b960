"""Faults that have one cause between them, told as that one.

A test sees one pair of things: tokens and states, labels and states, mask and answers. If tokens moved against all the
others, three tests see it, each as a fault of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from eyas.doctor.hypothesis import Fault

# (what all were found of one subject, the one that is the cause, what it is then told to be)
_TOGETHER: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"pair-shift", "label-shift", "mask-shift"}), "pair-shift", "states, labels and mask agree, and the tokens stand elsewhere"),
)


def joined(faults: Sequence[Fault]) -> list[Fault]:
    """The same faults; those with a cause in common only shadow it."""
    found = list(faults)
    for codes, cause, words in _TOGETHER:
        for subject in {fault.subject for fault in found}:
            if codes <= {fault.code for fault in found if fault.subject == subject}:
                found = [_told(fault, codes, cause, subject, words) for fault in found]
    return found


def _told(fault: Fault, codes: frozenset[str], cause: str, subject: str, words: str) -> Fault:
    if fault.subject != subject or fault.code not in codes:
        return fault
    if fault.code == cause:
        first, *rest = fault.evidence
        return dataclasses.replace(fault, evidence=(dataclasses.replace(first, text=f"{first.text}: {words}"), *rest))
    return dataclasses.replace(fault, shadow=(*fault.shadow, cause))
