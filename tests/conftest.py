"""Fixtures for every test: tiny targets, made once for the whole session, also across xdist workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: test workers share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TinyTargets = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder for all workers of this session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def tiny_targets(shared_folder: Path) -> TinyTargets:
    """`tiny_targets(family, trained=False, seed=0)` gives the folder of a tiny target; treat it as read-only."""

    def get(family: str = "llama", *, trained: bool = False, seed: int = 0) -> Path:
        from eyas.targets.tiny import make_tiny

        folder = shared_folder / f"{family}-{'trained' if trained else 'random'}-{seed}"
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the system even if the worker dies
            if not folder.exists():
                make_tiny(family, folder, trained=trained, seed=seed)
        return folder

    return get
