"""R: reported figures, in one set of terms, and beside what this draft and target give."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Hypothesis, Outcome


def _impossible(exam: Examination) -> Outcome:
    from eyas.doctor.reported import impossible

    return impossible(exam)


def _definition(exam: Examination) -> Outcome:
    from eyas.doctor.reported import definitions

    return definitions(exam)


def _drift(exam: Examination) -> Outcome:
    from eyas.doctor.reported import drift

    return drift(exam)


def _load(exam: Examination) -> Outcome:
    from eyas.doctor.reported import load

    return load(exam)


def _served(exam: Examination) -> Outcome:
    from eyas.doctor.replay.expected import compare_served

    return compare_served(exam)


HYPOTHESES = (
    Hypothesis(
        "metric-impossible",
        "static",
        "a reported figure cannot be true",
        ("readings",),
        "compare figures with each other",
        "they contradict",
        _impossible,
        prior=0.3,
    ),
    Hypothesis(
        "metric-definition",
        "static",
        "a figure counts something else",
        ("readings",),
        "compare length, rate and counts by each engine's definitions",
        "they fit another definition",
        _definition,
        prior=0.3,
    ),
    Hypothesis(
        "drift",
        "static",
        "acceptance falls while the server runs",
        ("log",),
        "compare the beginning of the log with its end",
        "it falls beyond chance",
        _drift,
        prior=0.1,
    ),
    Hypothesis(
        "batch-variant",
        "static",
        "acceptance falls with the server's load",
        ("log",),
        "compare lines of the log at few and many requests, short and long texts, few and many cache hits",
        "it is lower at one end beyond chance",
        _load,
        prior=0.1,
    ),
    Hypothesis(
        "served-below",
        "live",
        "the server accepts less than this draft gives on this target",
        ("draft", "figures", "replay"),
        "walk over the target's own answers and compare by position",
        "what is served lies below",
        _served,
        prior=0.4,
        seconds=2.0,
    ),
)
