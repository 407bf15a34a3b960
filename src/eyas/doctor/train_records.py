"""A trainer's own history of losses, shares and rates, as far as such files are alike: in which files of a draft's folder it stands."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eyas.files import JSON_ERRORS

_LISTS = ("log_history", "history", "logs", "metrics", "steps")
_ENDINGS = (".json", ".jsonl", ".csv", ".log")
_MAX_BYTES = 64 << 20
_MAX_FILES = 64
_TELLS = re.compile(r"(^|[^a-z])([a-z]?loss|acc|accuracy|grad_?norm|learning_?rate|lr|accept\w*)(_?\d+)?$", re.IGNORECASE)
_NUMBER = r"(nan|[-+]?inf|[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
_PAIR = re.compile(rf"([A-Za-z][\w/.-]*)['\"]?\s*[:=\s]\s*['\"]?{_NUMBER}(?![\w.])", re.IGNORECASE)
Row = Mapping[str, Any]


def records(folder: Path) -> dict[str, list[Row]]:
    """Rows of every record beside the draft, by the file's name. What is no record, or cannot be read, has none."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS and path.is_file())
    found = {}
    for path in files[:_MAX_FILES]:
        rows = _rows(path) if path.stat().st_size <= _MAX_BYTES else []
        rows = [row for row in rows if any(_TELLS.search(str(key)) for key in row)]
        if rows:
            found[path.name] = rows
    return found


def _rows(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    if path.suffix == ".csv":
        return [dict(row) for row in csv.DictReader(text.splitlines())]
    try:
        value = json.loads(text)
    except JSON_ERRORS:
        value = [row for line in text.splitlines() if (row := _parsed(line)) is not None]
        value = value or list(_spoken(text))
    if isinstance(value, Mapping):
        value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), [value])
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _parsed(line: str) -> Any:
    try:
        value = json.loads(line)
    except JSON_ERRORS:
        return None
    return value if isinstance(value, Mapping) else None


def _spoken(text: str) -> Iterator[Row]:
    """Lines such as `step 20 | loss 1.93 | lr 1e-4`, or a printed dict."""
    for line in text.splitlines():
        row = {key: float(value) for key, value in _PAIR.findall(line)}
        if row:
            yield row
