"""S: are the weights still those that dump and draft were made on?"""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Hypothesis, Outcome


def _target(exam: Examination) -> Outcome:
    from eyas.doctor.replay.identity import check_target

    return check_target(exam)


def _draft(exam: Examination) -> Outcome:
    from eyas.doctor.replay.identity import compare_records

    return compare_records(exam)


def _head(exam: Examination) -> Outcome:
    from eyas.doctor.replay.identity import check_dump_teacher

    return check_dump_teacher(exam)


HYPOTHESES = (
    Hypothesis(
        "draft-stale",
        "weights",
        "draft and dump were made on different weights",
        ("draft", "dump"),
        "compare their traces",
        "they differ beyond rounding",
        _draft,
        prior=0.2,
        seconds=0.2,
    ),
    Hypothesis(
        "target-changed",
        "replay",
        "the target changed after draft or dump were made",
        ("target", "layers"),
        "run the trace's text through the target",
        "its states lie elsewhere",
        _target,
        prior=0.3,
        seconds=3.0,
    ),
    Hypothesis(
        "target-changed",
        "replay",
        "the target's head or embedding changed after the dump was made",
        ("samples", "target"),
        "compare the dump's labels with what this head says",
        "they differ though all else fits",
        _head,
        prior=0.1,
        seconds=1.0,
    ),
)
