"""Healthy sets, made once for a session and shared by its workers."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from seeded.sets import Set, make_set

SetOf = Callable[[str], Set]


@pytest.fixture(scope="session")
def healthy_folder(shared_folder: Path) -> Callable[[str], Path]:
    """The folder of a family's set; treat it as read-only."""

    def get(family: str) -> Path:
        folder = shared_folder / f"fault-set-{family}"
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "draft").exists():
                make_set(family, folder)
        return folder

    return get


@pytest.fixture
def set_of(healthy_folder: Callable[[str], Path], tmp_path: Path) -> SetOf:
    """A healthy set with a folder to plant faults in."""

    def get(family: str) -> Set:
        folder = healthy_folder(family)
        parts = {"target": folder / "target", "draft": folder / "draft", "dump": folder / "dump", "data": folder / "chats.jsonl"}
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return Set(family=family, work=work, **parts)

    return get
