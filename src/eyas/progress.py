"""One progress bar for every long job: done, rate, time left, and a few live figures. It writes to stderr.

Where stderr is no terminal (a log file, a CI run) a line with the same figures is printed every half minute instead.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

console = Console(stderr=True)
_LOG_EVERY = 30.0  # seconds
_SETTLED = 1.0  # seconds; before, a first batch or none at all would be taken for the rate
_SHOWN: list[Progress] = []  # a terminal has room for one: while a part's bar is shown, the whole's is put away


def counted(count: int, noun: str) -> str:
    """`1 chat`, `2,000 chats`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Progress:
    """`total` counts `unit`, a plural; the rate is shown in `unit` a second."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._title, self._unit = title, unit
        self._task = self._bar.add_task(title, total=total, rate="", note="")
        self._logged = self._began = time.monotonic()
        self._done = 0  # by this run

    def found(self, count: int) -> None:
        """So many were done by an earlier run: they count, but say nothing about the rate."""
        task = self._bar.tasks[0]
        self._bar.reset(self._task, completed=int(task.completed) + count, start=True)
        self._began, self._done = time.monotonic(), 0

    def advance(self, count: int, note: str = "") -> None:
        """`note` is shown at the end of the bar: the loss, the acceptance, a rate of another unit."""
        task = self._bar.tasks[0]
        self._done += count
        seconds = time.monotonic() - self._began
        rate = f"{self._done / seconds:,.1f} {self._unit}/s" if seconds >= _SETTLED else ""
        self._bar.update(self._task, advance=count, rate=rate, note=note or task.fields["note"])
        if not console.is_terminal and time.monotonic() - self._logged > _LOG_EVERY:
            self._log()

    def __enter__(self) -> Progress:
        if _SHOWN:
            _SHOWN[-1]._put_away()
        _SHOWN.append(self)
        self._bar.start()
        return self

    def _put_away(self) -> None:
        self._bar.live.transient = True
        self._bar.stop()
        self._bar.live.transient = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
        _SHOWN.remove(self)
        if not console.is_terminal:
            self._log()
        if _SHOWN:
            _SHOWN[-1]._bar.start()

    def _log(self) -> None:
        self._logged = time.monotonic()
        task = self._bar.tasks[0]
        left = f", {task.time_remaining:,.0f} s left" if task.time_remaining else ""
        note = f"; {task.fields['note']}" if task.fields["note"] else ""
        figures = f"{task.completed:,.0f} of {task.total:,.0f} {self._unit}, {task.fields['rate'] or 'rate unknown'}{left}{note}"
        console.print(f"{self._title}: {figures}", markup=False, highlight=False, soft_wrap=True)
