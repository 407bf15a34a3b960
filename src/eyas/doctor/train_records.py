"""A trainer's own history of losses, shares and rates, as far as such files are alike, and what in it shows that a run went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from eyas.doctor.opening.plain import number
from eyas.files import JSON_ERRORS

_NAMES = ("trainer_state", "training_state", "state", "train_log", "training_log", "log", "metrics", "history", "train", "run")
_LISTS = ("log_history", "history", "logs", "metrics", "steps")
_MAX_BYTES = 64 << 20
_FEWEST = 8  # rows below which nothing is said about a course
_JUMP = 4.0
_PERCENT = 12.0
_SHARE = re.compile(r"(^|[^a-z])(acc|accuracy|accept_rate|acceptance_rate|accept_prob)([^a-z]|$)")
Row = Mapping[str, Any]


def records(folder: Path) -> dict[str, list[Row]]:
    """Rows of every record beside the draft, by the file's name. What is no record, or cannot be read, has none."""
    found = {}
    for stem in _NAMES:
        for path in (folder / f"{stem}.json", folder / f"{stem}.jsonl"):
            rows = _rows(path) if path.is_file() and path.stat().st_size <= _MAX_BYTES else []
            if rows:
                found[path.name] = rows
    return found


def _rows(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    try:
        value = json.loads(text)
    except JSON_ERRORS:
        value = [row for line in text.splitlines() if (row := _parsed(line)) is not None]
    if isinstance(value, Mapping):
        value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), [value])
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except JSON_ERRORS:
        return None


def oddities(rows: Sequence[Row]) -> list[str]:
    """In words, each with its step."""
    found = [text for row in rows for text in _of_row(row)]
    return found + list(_of_course(rows))


def _of_row(row: Row) -> Iterator[str]:
    step = row.get("step", row.get("global_step", "?"))
    for key, value in row.items():
        name = str(key).lower()
        if (isinstance(value, float) and number(value) is None) or (isinstance(value, str) and value.lower() in ("nan", "inf", "-inf")):
            yield f"{key} is {value} at step {step}"
        elif name in ("lr", "learning_rate") and (number(value) or 0.0) < 0:
            yield f"{key} = {value} at step {step}"


def _of_course(rows: Sequence[Row]) -> Iterator[str]:
    yield from _shares(rows)
    rates = _column(rows, "learning_rate", "lr")
    jumps = [later for before, later in pairwise(rates[1:]) if later > _JUMP * before > 0]
    if jumps:
        yield f"the learning rate jumps to {jumps[0]:g} in the middle of the run: the schedule was lost on a resume"
    if len(rates) >= _FEWEST and max(rates) == 0.0:
        yield "the learning rate is 0 all along: nothing was trained"
    steps = _column(rows, "step", "global_step")
    back = [later for before, later in pairwise(steps) if later < before]
    if back:
        yield f"the steps go back to {back[0]:g} in the middle of the run: it was begun again over its own record"
    norms = _column(rows, "grad_norm", "gradient_norm", "grad_norm_total")
    if len(norms) >= _FEWEST and sum(norm == 0.0 for norm in norms) > len(norms) / 2:
        yield f"the gradient's norm is 0 in {sum(norm == 0.0 for norm in norms)} of {len(norms)} rows: nothing reaches the weights"
    losses = _column(rows, "loss", "train_loss", "train/loss", "total_loss")
    third = len(losses) // 3
    if len(losses) >= 2 * _FEWEST:
        first, last = fmean(losses[:third]), fmean(losses[-third:])
        if last > 1.02 * first > 0:
            yield f"the loss rises: {first:.3g} on average in the first third of the rows, {last:.3g} in the last"


def _shares(rows: Sequence[Row]) -> Iterator[str]:
    """Accuracies and acceptance rates beyond 1; a column that reaches far beyond is in percent."""
    for key in dict.fromkeys(key for row in rows for key in row if _SHARE.search(str(key).lower())):
        values = [(row, value) for row in rows if (value := number(row.get(key))) is not None]
        most = max((value for _, value in values), default=0.0)
        if 1.0001 < most < _PERCENT:
            row, value = next((row, value) for row, value in values if value > 1.0001)
            yield f"{key} = {value:g} at step {row.get('step', '?')}: a share above 1 was added up twice"


def _column(rows: Sequence[Row], *names: str) -> list[float]:
    """The first of `names` that the rows have, where it is a number."""
    name = next((name for name in names if any(name in row for row in rows)), None)
    return [] if name is None else [value for row in rows if (value := number(row.get(name))) is not None]
