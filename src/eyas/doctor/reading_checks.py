"""Figures of acceptance that cannot be, and figures that are counted otherwise than their name says.

Each check takes a report and yields what it found. A check is silent where the report lacks what it compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from eyas.doctor.server_figures import Oddity, ServerFigures, length_from_rate

_LENGTH_TOLERANCE = 0.0101  # two figures printed with two decimals
_RATE_TOLERANCE = 0.0101
_COUNT_TOLERANCE = 0.5

Check = Callable[[ServerFigures], Iterator[Oddity]]


def not_numbers(report: ServerFigures) -> Iterator[Oddity]:
    for name, value in _figures(report):
        if not math.isfinite(value) or value < 0:
            yield Oddity("impossible", f"{name} is no count and no share", f"{value}", "a finite number, 0 or more")


def rates_beyond_one(report: ServerFigures) -> Iterator[Oddity]:
    if report.acceptance_rate is not None and report.acceptance_rate > 1:
        yield Oddity("impossible", "the acceptance rate is above 1", f"{report.acceptance_rate:.3f}", "0 to 1")
    for place, rate in enumerate(report.position_rates):
        if rate > 1:
            yield Oddity("impossible", f"the acceptance rate at position {place} is above 1", f"{rate:.3f}", "0 to 1")


def length_out_of_range(report: ServerFigures) -> Iterator[Oddity]:
    """A round gives at least the target's own token, and at most K drafts besides."""
    length, positions = report.acceptance_length, report.positions
    if length is None or not math.isfinite(length):
        return
    if length < 1 - _LENGTH_TOLERANCE and not (length == 0 and not report.rounds):
        yield _other_length(report) or Oddity("impossible", "the acceptance length is below 1", f"{length:.2f}", "1 or more")
    most = None if positions is None else positions + 1
    if most is not None and length > most + _LENGTH_TOLERANCE and not report.length_has_prefill:
        yield Oddity("impossible", f"the acceptance length is above K + 1 for K = {positions}", f"{length:.2f}", f"1 to {most}")


def counts_do_not_fit(report: ServerFigures) -> Iterator[Oddity]:
    accepted, proposed, rounds, positions = report.accepted, report.proposed, report.rounds, report.positions
    if accepted is not None and proposed is not None and accepted > proposed:
        yield Oddity("impossible", "more tokens were accepted than proposed", f"{accepted:g} of {proposed:g}", f"at most {proposed:g}")
    if rounds is not None and positions is not None:
        most = rounds * positions
        for name, value in (("accepted", accepted), ("proposed", proposed)):
            if value is not None and value > most + _COUNT_TOLERANCE:
                yield Oddity(
                    "impossible", f"more tokens were {name} than {rounds:g} rounds of {positions} hold", f"{value:g}", f"at most {most:g}"
                )


def positions_do_not_fit(report: ServerFigures) -> Iterator[Oddity]:
    """A position is accepted only if all before it were, so its count cannot be the larger one.

    Eyas's own rates divide by the rounds that proposed the position, which differ from one position to the next.
    """
    if report.engine == "eyas":
        return
    counts = report.position_counts or report.position_rates
    slack = _COUNT_TOLERANCE if report.position_counts else 0.0011
    for place, (before, after) in enumerate(pairwise(counts), start=1):
        if after > before + slack:
            yield Oddity(
                "impossible", f"position {place} was accepted more often than the one before it", f"{after:g}", f"at most {before:g}"
            )
    if report.position_counts and report.rounds is not None and counts[0] > report.rounds + _COUNT_TOLERANCE:
        yield Oddity("impossible", "position 0 was accepted more often than there were rounds", f"{counts[0]:g}", f"{report.rounds:g}")
    if report.position_counts and report.accepted is not None and abs(sum(counts) - report.accepted) > _COUNT_TOLERANCE:
        yield Oddity("impossible", "the positions do not add up to the accepted tokens", f"{sum(counts):g}", f"{report.accepted:g}")


def length_does_not_follow(report: ServerFigures) -> Iterator[Oddity]:
    """The stated length against the counts, or against the rates by position."""
    length, accepted = report.acceptance_length, _accepted_a_round(report)
    if length is None or accepted is None or report.length_has_prefill or length < 1 - _LENGTH_TOLERANCE:
        return
    if abs(length - (1 + accepted)) > _tolerance(report):
        yield _other_length(report) or Oddity(
            "impossible", "the acceptance length does not follow from the counts", f"{length:.2f}", f"{1 + accepted:.2f}"
        )


def rate_does_not_follow(report: ServerFigures) -> Iterator[Oddity]:
    """The stated rate against the length: it fits one definition of the engine's, or K was taken for another."""
    rate, length, positions = report.acceptance_rate, report.acceptance_length, report.positions
    if rate is None or length is None or positions is None or rate > 1 or report.length_has_prefill or report.proposed is not None:
        return
    allowed = (True, False) if report.drafts_only is None else (report.drafts_only,)
    if any(abs(length_from_rate(rate, positions, only) - length) <= (positions + 1) * _RATE_TOLERANCE for only in allowed):
        return
    for other in (positions - 1, positions + 1):
        if other > 0 and any(abs(length_from_rate(rate, other, only) - length) <= _LENGTH_TOLERANCE for only in allowed):
            yield Oddity(
                "other definition",
                "length and rate fit another K than the one given; SGLang's num_draft_tokens is K + 1",
                f"K = {positions}",
                f"K = {other}",
            )
            return
    fits = " or ".join(f"{length_from_rate(rate, positions, only):.2f}" for only in allowed)
    yield Oddity("impossible", f"length and rate do not fit together for K = {positions}", f"length {length:.2f}, rate {rate:.3f}", fits)


def rate_does_not_follow_from_counts(report: ServerFigures) -> Iterator[Oddity]:
    """Both engines' rate of drafts alone is accepted / proposed; SGLang's older one counts the target's token twice."""
    rate, accepted, proposed = report.acceptance_rate, report.accepted, report.proposed
    if rate is None or accepted is None or not proposed or accepted > proposed or rate > 1 or report.drafts_only is not True:
        return
    if abs(rate - accepted / proposed) > _RATE_TOLERANCE:
        yield Oddity("impossible", "the acceptance rate is not accepted / proposed", f"{rate:.3f}", f"{accepted / proposed:.3f}")


def _other_length(report: ServerFigures) -> Oddity | None:
    """A length that is off by exactly one counts the target's own token not at all, or twice."""
    length, accepted = report.acceptance_length, _accepted_a_round(report)
    if length is None or accepted is None:
        return None
    for off, words in ((0, "leaves out the target's own token of each round"), (2, "counts one token a round too many")):
        if abs(length - (off + accepted)) <= _tolerance(report):
            return Oddity("other definition", f"the acceptance length {words}", f"{length:.2f}", f"{1 + accepted:.2f}")
    return None


def _accepted_a_round(report: ServerFigures) -> float | None:
    if report.accepted is not None and report.rounds:
        return report.accepted / report.rounds
    return sum(report.position_rates) if report.position_rates else None


def _tolerance(report: ServerFigures) -> float:
    return _LENGTH_TOLERANCE + (0.0006 * len(report.position_rates) if report.accepted is None else 0.0)


def _figures(report: ServerFigures) -> Iterator[tuple[str, float]]:
    named = {
        "the number of rounds": report.rounds,
        "the number of proposed tokens": report.proposed,
        "the number of accepted tokens": report.accepted,
        "the acceptance length": report.acceptance_length,
        "the acceptance rate": report.acceptance_rate,
    }
    yield from ((name, value) for name, value in named.items() if value is not None)
    yield from ((f"the count at position {place}", value) for place, value in enumerate(report.position_counts))
    yield from ((f"the rate at position {place}", value) for place, value in enumerate(report.position_rates))


CHECKS: tuple[Check, ...] = (
    not_numbers,
    rates_beyond_one,
    length_out_of_range,
    counts_do_not_fit,
    positions_do_not_fit,
    length_does_not_follow,
    rate_does_not_follow,
    rate_does_not_follow_from_counts,
)
