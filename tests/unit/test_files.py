"""Nothing half-written: files and folders appear whole or not at all, and damage is named."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from safetensors import SafetensorError

from eyas.errors import UserError
from eyas.files import (
    atomic_folder,
    atomic_path,
    check_folder_free,
    check_folder_writable,
    exclusive,
    read_json,
    sha256_file,
    sha256_text,
    write_json,
    write_text,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_written_file_is_whole_and_alone(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "grüße\n")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "grüße\n"
    assert names(tmp_path / "deep") == {"a.txt"}


def test_a_failed_body_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert names(tmp_path) == {"a.txt"}


def test_a_full_disk_is_a_user_error_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="cannot write") as caught, atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.got == os.strerror(errno.ENOSPC)
    assert names(tmp_path) == set()


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "out"
    with atomic_folder(out) as temporary:
        (temporary / "a").write_text("1")
        assert not out.exists()
    assert names(out) == {"a"}
    assert names(tmp_path) == {"out"}


def test_a_failed_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "out") as temporary:
        (temporary / "a").write_text("1")
        raise RuntimeError
    assert names(tmp_path) == set()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_not_ours_is_not_replaced(tmp_path, kind):
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "theirs").write_text("precious")
    else:
        out.write_text("precious")
    with pytest.raises(UserError, match="not empty"), atomic_folder(out):
        pytest.fail("the body must not run")
    assert (out / "theirs" if kind == "folder" else out).read_text() == "precious"


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    with atomic_folder(tmp_path / "out") as temporary:
        (temporary / "a").write_text("1")
    assert names(tmp_path / "out") == {"a"}


def test_what_is_ours_is_replaced_only_on_success(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("old")

    def ours(existing: Path) -> bool:
        return (existing / "manifest.json").exists()

    with pytest.raises(RuntimeError), atomic_folder(out, overwrite=ours):
        raise RuntimeError
    assert (out / "manifest.json").read_text() == "old"
    with atomic_folder(out, overwrite=ours) as temporary:
        (temporary / "fresh").write_text("new")
    assert names(out) == {"fresh"}


def test_what_came_into_being_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="not empty"), atomic_folder(out) as temporary:
        (temporary / "a").write_text("late")
        out.mkdir()
        (out / "a").write_text("another process was faster")
    assert (out / "a").read_text() == "another process was faster"
    assert names(tmp_path) == {"out"}


def test_json_round_trip(tmp_path):
    write_json(tmp_path / "a.json", {"name": "größe", "taps": ["embed"]})
    assert read_json(tmp_path / "a.json", "test file") == {"name": "größe", "taps": ["embed"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_unreadable_json_is_named(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_json(path, "dump manifest")
    assert "dump manifest" in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_in_place_of_json(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        read_json(tmp_path, "draft config")


def test_hashes_are_sha256(tmp_path):
    data = b"x" * 3_000_000  # longer than one block
    (tmp_path / "a").write_bytes(data)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()
    assert sha256_text("ü") == hashlib.sha256("ü".encode()).hexdigest()


def test_a_reader_never_sees_a_partial_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"n": 0})
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(len(read_json(path, "test file")))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(50):
        write_json(path, {str(key): n for key in range(200)})
    stop.set()
    reader.join()
    assert set(seen) <= {1, 200}


@pytest.mark.parametrize("make", [atomic_path, atomic_folder])
def test_a_place_that_cannot_be_made_is_a_user_error(tmp_path, make):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"), make(tmp_path / "file" / "deep" / "a"):
        pytest.fail("nothing can be written here")


@pytest.mark.parametrize("make", [atomic_path, atomic_folder])
def test_a_full_disk_as_safetensors_says_it(tmp_path, make):
    with pytest.raises(UserError, match="cannot write") as caught, make(tmp_path / "a"):
        raise SafetensorError("I/O error: No space left on device")
    assert "No space left" in caught.value.got
    assert names(tmp_path) == set()


def test_the_working_folder_itself_may_be_the_output(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_folder(Path(".")) as temporary:
        (temporary / "a").touch()
    assert names(tmp_path / "here") == {"a"}


def test_one_process_at_a_time(tmp_path):
    with exclusive(tmp_path), pytest.raises(UserError, match="another process"), exclusive(tmp_path):
        pytest.fail("it is held")
    with exclusive(tmp_path):
        pass


def test_a_folder_that_can_be_written_is_not_made(tmp_path):
    check_folder_writable(tmp_path / "deep" / "er")
    assert names(tmp_path) == set()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file") as caught:
        check_folder_writable(tmp_path / "file" / "er")
    assert "choose another --out" in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_place_that_takes_no_files_is_not_called_full():
    with pytest.raises(UserError, match="cannot write") as caught:
        check_folder_writable(Path("/proc/eyas"))
    assert "disk" not in str(caught.value)


@pytest.mark.parametrize("make", [atomic_path, atomic_folder])
def test_what_a_killed_process_left_is_cleared_away_and_nothing_else(tmp_path, make):
    script = f"""
import os, signal
from pathlib import Path
from eyas.files import {make.__name__}
with {make.__name__}(Path({str(tmp_path / "out")!r})) as temporary:
    file = temporary / "half" if temporary.is_dir() else temporary
    file.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert len(names(tmp_path)) == 1
    living, elsewhere = f".out.{socket.gethostname()}.{os.getppid()}.tmp", f".out.another-machine.{2**22}.tmp"
    for name in (living, elsewhere):
        (tmp_path / name).write_text("still being written")
    with make(tmp_path / "out") as temporary:
        (temporary / "whole" if temporary.is_dir() else temporary).write_text("whole")
    assert names(tmp_path) == {"out", living, elsewhere}


def test_written_files_are_as_open_as_the_umask_allows(tmp_path):
    """safetensors makes them 0600."""
    import torch
    from safetensors.torch import save_file

    ordinary = tmp_path / "ordinary"
    ordinary.write_text("x")
    with atomic_path(tmp_path / "one.safetensors") as temporary:
        save_file({"x": torch.zeros(1)}, temporary)
    with atomic_folder(tmp_path / "folder") as temporary:
        save_file({"x": torch.zeros(1)}, temporary / "two.safetensors")
    modes = {path.stat().st_mode for path in (ordinary, tmp_path / "one.safetensors", tmp_path / "folder" / "two.safetensors")}
    assert len(modes) == 1


@pytest.mark.parametrize("check", [check_folder_writable, check_folder_free])
def test_a_name_that_no_disk_takes_is_a_user_error(tmp_path, check):
    with pytest.raises(UserError, match="cannot write"):
        check(tmp_path / ("long" * 100))
