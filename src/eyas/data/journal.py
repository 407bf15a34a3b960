"""An append-only record of finished work, so that a long job goes on after kill -9.

One JSON object a line. A line cut off by a crash is dropped when the journal is opened again. One process writes at a time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from eyas.errors import UserError
from eyas.files import JSON_ERRORS, exclusive, writing


def journal_of(out: Path) -> Path:
    """Where the work on the file `out` is recorded until it is finished."""
    return out.with_name(out.name + ".journal")


class Journal:
    """`settings` must be the same at every start; otherwise the work on disk was done for another job.

    Raises UserError for other settings, a damaged journal, another process that writes it, or a disk that takes nothing.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        with contextlib.ExitStack() as opened:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = opened.enter_context(open(path, "ab", buffering=0))
            opened.enter_context(exclusive(path))
            self.entries = self._begin(settings)
            self._is_empty = not self.entries
            self._open = opened.pop_all()

    def _begin(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        lines = self._whole_lines()
        if not lines:
            self._write({"settings": settings})
        elif (begun := lines[0].get("settings")) != settings:
            begun = begun if isinstance(begun, dict) else {}
            differing = [name for name in {**settings, **begun} if settings.get(name) != begun.get(name)]
            raise UserError(
                f"{self.path} was begun with other settings",
                got={name: settings.get(name) for name in differing},
                allowed={name: begun.get(name) for name in differing},
                remedy=f"use those settings, another --out, or remove {self.path} to begin again",
            )
        return lines[1:]

    def append(self, entry: dict[str, Any]) -> None:
        self._is_empty = False
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        with writing(self.path):
            if self._stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
        if self._is_empty:
            self.path.unlink()  # nothing was done, so there is nothing to go on with

    def _whole_lines(self) -> list[dict[str, Any]]:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            with open(self.path, "r+b") as stream:
                stream.truncate(len(whole))
                os.fsync(stream.fileno())
        # bytes, since str.splitlines would also cut at U+2028 and its like inside a text
        lines = [_object(line) for line in whole.splitlines()]
        if None in lines:
            raise UserError(
                f"{self.path} is damaged, or is no journal of Eyas",
                got=f"line {lines.index(None) + 1} is not a JSON object",
                remedy=f"remove {self.path} to begin again, or give another --out",
            )
        return [line for line in lines if line is not None]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except JSON_ERRORS:
        return None
    return value if isinstance(value, dict) else None
