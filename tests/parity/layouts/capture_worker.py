"""Run by torchrun: a capture in small shards, of which one rank may fail at a given shard.

PYTHONPATH=src:tests/parity torchrun --nproc-per-node 2 tests/parity/layouts/capture_worker.py REQUEST.json
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from eyas.capture import runner
from eyas.capture.corpus import read_corpus
from eyas.capture.job import CaptureReport, CaptureSettings
from eyas.capture.parallel.writer import SharedWriter
from eyas.capture.runner import capture_to_dump
from eyas.taps import parse_taps
from eyas.targets.layout import start_layout
from eyas.targets.loading import load_target
from eyas.targets.target import Target

ON_PURPOSE = "this rank fails on purpose"


def capture(target: Target, folder: str, prepared: str, out: str) -> CaptureReport:
    settings = CaptureSettings(taps=parse_taps("embed,layer:0,layer:1"), max_batch_tokens=256, shard_bytes=1 << 16)
    return capture_to_dump(target, read_corpus(Path(prepared), folder), settings, Path(out))


def main(request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    with start_layout(request["tp"], request["cp"], "zig-zag", torch.device("cpu"), request["timeout"]) as layout:
        if layout.rank == 1:
            plant(request["how"], request["at_shard"])
        target = load_target(request["target"], device=torch.device("cpu"), dtype=torch.float32, layout=layout)
        capture(target, request["target"], request["prepared"], request["out"])


def plant(how: str, at_shard: int) -> None:
    """This rank is killed or raises when it comes to a shard, or hangs in the forward behind the first shard of this run."""
    write_shard, forward = SharedWriter.write_shard, runner.capture_batch
    written = False

    def failing(writer: SharedWriter, *args: Any) -> None:
        nonlocal written
        if how == "raise" and writer.next_shard == at_shard:
            raise RuntimeError(ON_PURPOSE)
        if how == "kill" and writer.next_shard == at_shard:
            os.kill(os.getpid(), signal.SIGKILL)
        write_shard(writer, *args)
        written = True

    def hanging(*args: Any, **options: Any) -> Any:
        if how == "hang" and written:
            time.sleep(1000)
        return forward(*args, **options)

    SharedWriter.write_shard = failing  # type: ignore[method-assign]
    runner.capture_batch = hanging


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
