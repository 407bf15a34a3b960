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


@pytest.fixture(scope="session")
def made_targets(shared_folder: Path) -> Callable[[str], Path]:
    """`made_targets(name)` gives the folder of a taught target in its small size (a minute of work); treat it as read-only."""

    def get(name: str) -> Path:
        from eyas.targets.made import make_target

        folder = shared_folder / f"{name}-small"
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                make_target(name, folder, small=True)
        return folder

    return get


@pytest.fixture(scope="session")
def tiny_dump(shared_folder: Path, tiny_targets: TinyTargets) -> Path:
    """A dump of the trained tiny llama on 160 chats of its own kind (fp32; embed, layer:1, layer:2; a tenth for validation)."""
    import json

    import torch

    from eyas.capture.corpus import read_corpus
    from eyas.capture.job import CaptureSettings
    from eyas.capture.runner import capture_to_dump
    from eyas.data.prepare import PrepareSettings, prepare
    from eyas.taps import parse_taps
    from eyas.targets.loading import load_target
    from eyas.targets.tiny_text import tiny_chats

    folder = shared_folder / "tiny-dump"
    target = tiny_targets("llama", trained=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            chats = shared_folder / "tiny-dump-chats.jsonl"
            chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(160, seed=7)))
            prepared = shared_folder / "tiny-dump-prepared"
            prepare(str(target), [chats], prepared, PrepareSettings(validation=0.1))
            loaded = load_target(str(target), device=torch.device("cpu"), dtype=torch.float32)
            settings = CaptureSettings(taps=parse_taps("embed,layer:1,layer:2"), max_batch_tokens=1024, shard_bytes=1 << 22)
            capture_to_dump(loaded, read_corpus(prepared, str(target), False), settings, folder)
    return folder
