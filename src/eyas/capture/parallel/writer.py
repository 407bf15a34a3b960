"""One dump written by many ranks: rank 0 holds the files, the others know what it has written and share its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from eyas.capture.trace import Trace
from eyas.data.store import Sample
from eyas.data.store_writer import DumpHeader, DumpWriter
from eyas.targets.layout import Layout


class SharedWriter:
    """`DumpWriter`, for callers that run on every rank and make the same calls in the same order.

    `manifest` is what stood in it when the writer was entered; whatever rank 0 raises as a UserError, all ranks raise.
    """

    def __init__(self, layout: Layout, folder: Path, header: DumpHeader, token_counts: torch.Tensor) -> None:
        self._layout = layout
        self._writer = DumpWriter(folder, header, token_counts) if layout.writes else None
        self._open = contextlib.ExitStack()
        self.manifest: Mapping[str, Any] = {}
        self.next_shard = 0

    def __enter__(self) -> SharedWriter:
        with contextlib.ExitStack() as opened:
            self.manifest = self._layout.on_rank_0(lambda: opened.enter_context(self._held()).manifest)
            self._open = opened.pop_all()
        self.next_shard = len(self.manifest["shards"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def keep_trace(self, trace: Trace) -> None:
        """Store the trace beside the shards, unless the run that began the dump has done so."""

        def keep() -> None:
            if not self._held().trace_path.is_file():
                trace.save(self._held().trace_path)

        self._layout.on_rank_0(keep)

    def write_shard(self, samples: Sequence[Sample], teacher_check: Mapping[str, int]) -> None:
        """`samples` are rank 0's; the others' are not looked at."""
        self._layout.on_rank_0(lambda: self._held().write_shard(samples, teacher_check, self._layout.to_json()))
        self.next_shard += 1

    def finish(self, teacher_check: Mapping[str, Any], wrong_teacher: bool) -> None:
        if not self.manifest["complete"]:
            self._layout.on_rank_0(lambda: self._held().finish(teacher_check, wrong_teacher))

    def finished(self) -> Mapping[str, Any]:
        """The manifest as it stands now."""
        return self._layout.on_rank_0(lambda: self._held().manifest)

    def _held(self) -> DumpWriter:
        assert self._writer is not None, "only rank 0 holds the files"
        return self._writer
