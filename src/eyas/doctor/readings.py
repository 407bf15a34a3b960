"""What a server reports about acceptance, in one set of terms: how often each position of a round was accepted.

The engines divide by different counts. With A accepted drafts in R rounds of K proposals each:

    vLLM                  acceptance length 1 + A / R;  rate A / proposed;  rate of position i: accepted there / all rounds
    SGLang >= 0.5.11      acceptance length 1 + A / R;  rate A / (R·K)
    SGLang <= 0.5.10      acceptance length 1 + A / R;  rate (A + R) / (R·(K + 1)): the target's token is counted twice
    SGLang, one request   acceptance length = tokens of the answer / R, the prefill's among them;  rate A / (R·K)

SGLang's speculative_num_draft_tokens is K + 1. Read in the sources of vLLM 0.16 to 0.33 and SGLang 0.5.3 to 0.5.23.

Intervals take rounds as independent. Rounds of one chat are not, so they are the narrowest that can be true.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from eyas.doctor.reading_checks import CHECKS
from eyas.doctor.server_figures import Oddity, ServerFigures, length_from_rate

Z = 1.96  # of a 95 % interval
_PRINTED = 0.0051  # half a unit of a figure printed with two decimals


@dataclass(frozen=True)
class Interval:
    """`value` is None where only bounds are known."""

    value: float | None
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Reading:
    """`unconditional[i]`: share of all rounds that accepted position i; `conditional[i]`: of those that accepted all before.

    `acceptance_length` is 1 + accepted drafts / rounds. A position that is only bounded has no `value`.
    """

    engine: str
    where: str
    num_draft_tokens: int | None
    rounds: float | None
    acceptance_length: Interval | None
    unconditional: tuple[Interval, ...]
    conditional: tuple[Interval | None, ...]
    notes: tuple[str, ...]
    oddities: tuple[Oddity, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def wilson(count: float, total: float) -> Interval:
    """Wilson's 95 % interval of count / total; all of [0, 1] for no trials."""
    if total <= 0:
        return Interval(None, 0.0, 1.0)
    share = min(1.0, max(0.0, count / total))
    middle = (share + Z * Z / (2 * total)) / (1 + Z * Z / total)
    half = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total)) / (1 + Z * Z / total)
    return Interval(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def read(report: ServerFigures) -> Reading:
    """The report in common terms. Figures that cannot be true are listed and left out of the terms."""
    oddities = find_oddities(report)
    notes: list[str] = []
    if any(item.kind == "impossible" for item in oddities):
        notes.append("the figures contradict each other, so no rate by position is worked out of them")
        return Reading(report.engine, report.where, report.positions, report.rounds, None, (), (), tuple(notes), oddities)
    length, counts, rounds = _mean_length(report, notes), _position_counts(report), _rounds(report)
    unconditional: tuple[Interval, ...] = ()
    conditional: tuple[Interval | None, ...] = ()
    if counts and rounds:
        unconditional = tuple(wilson(count, rounds) for count in counts)
        conditional = tuple(wilson(count, before) if before else None for count, before in zip(counts, (rounds, *counts), strict=False))
    elif report.position_rates:
        unconditional = tuple(Interval(rate, max(0.0, rate - 0.0005), min(1.0, rate + 0.0005)) for rate in report.position_rates)
        before = (1.0, *report.position_rates)
        conditional = tuple(
            Interval(rate / past, rate / past, rate / past) if past else None
            for rate, past in zip(report.position_rates, before, strict=False)
        )
    elif length is not None and report.positions:
        unconditional = _bounds(length - 1, report.positions)
        notes.append("only the mean is reported: each position lies within bounds that follow from it")
    interval = None if length is None else _length_interval(length, unconditional, rounds, report.positions)
    return Reading(report.engine, report.where, report.positions, rounds, interval, unconditional, conditional, tuple(notes), oddities)


def find_oddities(report: ServerFigures) -> tuple[Oddity, ...]:
    """Everything in a report that no decoding can have given."""
    return tuple(found for check in CHECKS for found in check(report))


def _rounds(report: ServerFigures) -> float | None:
    if report.rounds is not None:
        return report.rounds
    return report.proposed / report.positions if report.proposed and report.positions else None


def _position_counts(report: ServerFigures) -> tuple[float, ...]:
    rounds = _rounds(report)
    if report.position_counts or not rounds:
        return report.position_counts
    return tuple(rate * rounds for rate in report.position_rates)


def _mean_length(report: ServerFigures, notes: list[str]) -> float | None:
    rounds = _rounds(report)
    if report.accepted is not None and rounds:
        if report.length_has_prefill:
            notes.append("the server's own length counts the token of the prefill; this one does not")
        return 1 + report.accepted / rounds
    if report.position_rates:
        return 1 + sum(report.position_rates)
    if report.acceptance_length is not None:
        return report.acceptance_length
    if report.positions is None and (report.acceptance_rate is not None or report.proposed):
        notes.append("the figures do not say K, so no length follows from them: --num-draft-tokens tells it")
    if report.acceptance_rate is None or report.positions is None:
        return None
    if report.drafts_only is None:
        low, high = (length_from_rate(report.acceptance_rate, report.positions, only) for only in (False, True))
        notes.append(f"the version decides what the rate means: it stands for a length of {low:.2f} up to SGLang 0.5.10, {high:.2f} since")
        return None
    return length_from_rate(report.acceptance_rate, report.positions, report.drafts_only)


def _bounds(accepted: float, positions: int) -> tuple[Interval, ...]:
    """Acceptance falls with the position and sums up to `accepted` a round; more cannot be said of a position."""
    found = []
    for place in range(positions):
        low = max(0.0, (accepted - place) / (positions - place))
        found.append(Interval(None, min(1.0, low), min(1.0, accepted / (place + 1))))
    return tuple(found)


def _length_interval(length: float, unconditional: tuple[Interval, ...], rounds: float | None, positions: int | None) -> Interval:
    if not rounds:
        return Interval(length, length - _PRINTED, length + _PRINTED)
    accepted = length - 1
    if unconditional and all(item.value is not None for item in unconditional):
        square = sum((2 * place + 1) * (item.value or 0.0) for place, item in enumerate(unconditional))
        variance = max(0.0, square - accepted * accepted)
    else:
        variance = max(0.0, accepted * ((positions or 1) - accepted))  # the widest that a mean between 0 and K allows
    half = Z * math.sqrt(variance / rounds)
    return Interval(length, max(1.0, length - half), length + half)
