"""What in a trainer's history shows that a run went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median

from eyas.doctor.opening.plain import number
from eyas.doctor.train_records import Row

_FEWEST = 8  # rows below which nothing is said about a course
_JUMP = 4.0
_PERCENT = 12.0
_BURST = 100.0  # times its usual size
_FORESEEN = 1e-3  # a loss that no real text allows
_SHARE = re.compile(r"(^|[^a-z])(acc|accuracy|accept_rate|acceptance_rate|accept_prob)([^a-z]|$)")
_COUNTED = re.compile(r"loss|acc|grad|norm|lr|learning_?rate|perplexity|ppl|entropy|kl", re.IGNORECASE)
_LOSS = re.compile(r"(^|[^a-z])[a-z]?loss(_?\d+)?$", re.IGNORECASE)
_RATE = re.compile(r"(^|[^a-z])(lr|learning_?rate)$", re.IGNORECASE)
_NORM = re.compile(r"(^|[^a-z])grad(ient)?_?norm(_total)?$", re.IGNORECASE)
_STEP = re.compile(r"(^|[^a-z])(global_?)?step$|^iter(ation)?$", re.IGNORECASE)


def oddities(rows: Sequence[Row]) -> list[str]:
    """In words, each with its step."""
    found = [text for row in rows for text in _of_row(row)]
    return found + list(_of_course(rows))


def _of_row(row: Row) -> Iterator[str]:
    for key, value in row.items():
        none = (isinstance(value, float) and number(value) is None) or (isinstance(value, str) and value.lower() in ("nan", "inf", "-inf"))
        if none and _COUNTED.search(str(key)):
            yield f"{key} is {value} at step {_step(row)}"
        elif _RATE.search(str(key)) and (_value(value) or 0.0) < 0:
            yield f"{key} = {value} at step {_step(row)}"


def _of_course(rows: Sequence[Row]) -> Iterator[str]:
    yield from _shares(rows)
    rates = _column(rows, _RATE)
    jumps = [later for before, later in pairwise(rates[1:]) if later > _JUMP * before > 0]
    if jumps:
        yield f"the learning rate jumps to {jumps[0]:g} in the middle of the run: the schedule was lost on a resume"
    if len(rates) >= _FEWEST and max(rates) == 0.0:
        yield "the learning rate is 0 all along: nothing was trained"
    steps = _column(rows, _STEP)
    back = [later for before, later in pairwise(steps) if later < before]
    if back:
        yield f"the steps go back to {back[0]:g} in the middle of the run: it was begun again over its own record"
    yield from _norms(_column(rows, _NORM))
    yield from _losses(_column(rows, _LOSS))


def _norms(norms: Sequence[float]) -> Iterator[str]:
    if len(norms) < _FEWEST:
        return
    if sum(norm == 0.0 for norm in norms) > len(norms) / 2:
        yield f"the gradient's norm is 0 in {sum(norm == 0.0 for norm in norms)} of {len(norms)} rows: nothing reaches the weights"
    third = len(norms) // 3
    usual, last = median(norms[: 2 * third]), median(norms[-third:])
    if last > _BURST * usual > 0:
        yield f"the gradient's norm grows from {usual:.3g} to {last:.3g}: the run diverged"


def _losses(losses: Sequence[float]) -> Iterator[str]:
    if len(losses) < 2 * _FEWEST:
        return
    third = len(losses) // 3
    first, last = fmean(losses[:third]), fmean(losses[-third:])
    if last > 1.02 * first > 0:
        yield f"the loss rises: {first:.3g} on average in the first third of the rows, {last:.3g} in the last"
    elif 0 <= last < _FORESEEN < first:
        yield f"the loss falls to {last:.2g}: so well no draft foresees real text; its rows saw what they were to predict"


def _shares(rows: Sequence[Row]) -> Iterator[str]:
    """Accuracies and acceptance rates beyond 1; a column that reaches far beyond is in percent."""
    for key in dict.fromkeys(key for row in rows for key in row if _SHARE.search(str(key).lower())):
        values = [(row, value) for row in rows if (value := _value(row.get(key))) is not None]
        most = max((value for _, value in values), default=0.0)
        if 1.0001 < most < _PERCENT:
            row, value = next((row, value) for row, value in values if value > 1.0001)
            yield f"{key} = {value:g} at step {_step(row)}: a share above 1 was added up twice"


def _step(row: Row) -> object:
    return next((value for key, value in row.items() if _STEP.search(str(key))), "?")


def _column(rows: Sequence[Row], name: re.Pattern[str]) -> list[float]:
    """The first column of such a name that holds numbers."""
    keys = dict.fromkeys(key for row in rows for key in row if name.search(str(key)))
    columns = ([value for row in rows if (value := _value(row.get(key))) is not None] for key in keys)
    return next((values for values in columns if values), [])


def _value(value: object) -> float | None:
    """Of a number, or of one that a table holds as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return number(value)
