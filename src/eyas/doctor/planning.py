"""What would be tested, in order, before anything is run or loaded."""

from __future__ import annotations

from eyas.doctor.checks import all_hypotheses
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import DEPTHS, Hypothesis


def plan(exhibits: Exhibits, options: Options) -> list[tuple[Hypothesis, str | None]]:
    """Each hypothesis with what was not given for it. Raises UserError for exhibits that do not exist."""
    exhibits.check()
    options.check()
    given = exhibits.sources()
    given |= {"layers"} if "target" in given else set()
    given |= {"samples"} if "dump" in given else set()
    given |= {"replay"} if {"target", "draft"} <= given else set()
    wanted = [item for item in all_hypotheses() if item.depth in options.depths and options.wants(item.code, item.kind)]
    wanted.sort(key=lambda item: (DEPTHS.index(item.depth), -item.prior / (0.2 + item.seconds)))
    return [(item, _missing(item, given)) for item in wanted]


_NAMES = {"readings": "server, metrics or log", "figures": "metrics or log", "samples": "dump", "replay": "target and draft"}


def _missing(item: Hypothesis, given: set[str]) -> str | None:
    return ", ".join(_NAMES.get(need, need) for need in item.needs if need not in given) or None
