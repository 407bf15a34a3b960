"""One file a kind of fault; each names its hypotheses. A new fault is a hypothesis in one of them and a page in docs/doctor."""

from __future__ import annotations

import importlib

from eyas.doctor.hypothesis import Hypothesis

_FILES = (
    "checkpoint",
    "tensors",
    "taps",
    "norms",
    "slots",
    "shifts",
    "rope",
    "vocabulary",
    "heads",
    "dump",
    "text",
    "training",
    "ranks",
    "numbers",
    "invariance",
    "server",
    "metrics",
    "identity",
)


def all_hypotheses() -> list[Hypothesis]:
    """In the order of the kinds. Importing the checks loads no torch."""
    return [item for name in _FILES for item in importlib.import_module(f"eyas.doctor.checks.{name}").HYPOTHESES]
