"""An append-only record of finished work, so that a long job goes on after kill -9.

One JSON object a line. A line cut off by a crash is dropped when the journal is opened again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from eyas.errors import UserError


class Journal:
    """`settings` must be the same at every start; otherwise the work on disk was done for another job."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._whole_lines()
        if not lines:
            path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        elif lines[0].get("settings") != settings:
            raise UserError(
                f"{path} was begun with other settings",
                got=settings,
                allowed=lines[0].get("settings"),
                remedy=f"use those settings, another --out, or remove {path} to begin again",
            )
        self.entries = lines[1:]
        self._stream = open(path, "a", encoding="utf-8")  # noqa: SIM115  held open until close

    def append(self, entry: dict[str, Any]) -> None:
        self._stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._stream.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def _whole_lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            with open(self.path, "r+b") as stream:
                stream.truncate(len(whole))
                os.fsync(stream.fileno())
        # bytes, since str.splitlines would also cut at U+2028 and its like inside a text
        return [json.loads(line) for line in whole.splitlines()]
