"""A healthy set to serve, shared with the planted faults, and a server on it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from eyas.engine.pair import ServingPair, attach_draft
from eyas.targets.loading import load_target
from seeded.sets import make_set
from serving import Serving, Wrong


@pytest.fixture(scope="session")
def served_set(shared_folder: Path) -> Path:
    """target, draft, dump and chats.jsonl of a tiny llama; treat it as read-only."""
    folder = shared_folder / "fault-set-llama"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "draft").exists():
            make_set("llama", folder)
    return folder


@pytest.fixture(scope="session")
def pair(served_set: Path) -> ServingPair:
    target = load_target(str(served_set / "target"), device=torch.device("cpu"), dtype=torch.float32)
    return attach_draft(target, served_set / "draft")


@pytest.fixture
def serve(pair: ServingPair) -> Iterator[Callable[..., Serving]]:
    """`serve(wrong, engine="vllm")` starts a server; all are closed at the end of the test."""
    running: list[Serving] = []

    def start(wrong: Wrong | None = None, engine: str = "vllm", on: ServingPair | None = None) -> Serving:
        used = on or pair
        assert used.draft is not None
        running.append(Serving(used.target, used.draft, used.taps, wrong, engine))
        return running[-1]

    yield start
    for server in running:
        server.close()
