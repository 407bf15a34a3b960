"""One progress bar for every long job: done, rate, time left, and a few live figures. It writes to stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

console = Console(stderr=True)


class Progress:
    """`total` counts `unit`s; the rate is shown in `unit`s a second."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=False,
        )
        self._unit = unit
        self._task = self._bar.add_task(title, total=total, rate="", note="")

    def advance(self, count: int, note: str = "") -> None:
        """`note` is shown at the end of the bar: the loss, the acceptance, a rate of another unit."""
        task = self._bar.tasks[0]
        rate = f"{task.speed:,.1f} {self._unit}/s" if task.speed else ""
        self._bar.update(self._task, advance=count, rate=rate, note=note or task.fields["note"])

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
