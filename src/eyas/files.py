"""Writing and reading small files so that a crash never leaves half a file behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from eyas.errors import UserError

# json's own error is a ValueError, and so is an integer of thousands of digits; brackets nested too deep are the other one.
JSON_ERRORS = (ValueError, RecursionError)
_MAX_JSON = 64 << 20  # an index of a million tensors is smaller
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_UMASK = os.umask(0)  # it can only be read by setting it
os.umask(_UMASK)
_HOST = re.sub(r"[^\w-]", "-", socket.gethostname()) or "host"
_REMEDIES = {
    errno.ENOSPC: "free disk space or choose another {option}",
    errno.EDQUOT: "free disk space or choose another {option}",
    errno.EFBIG: "choose an {option} on another disk: this one holds no file of that size",
    errno.EACCES: "get leave to write there, or choose another {option}",
    errno.EPERM: "get leave to write there, or choose another {option}",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another {option}",
    errno.EEXIST: "a file stands where a folder is needed: choose another {option}",
}


@contextlib.contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Turn what a full, read-only or missing disk does to the body into a UserError; safetensors has an error of its own for it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        got = getattr(error, "strerror", None) or str(error)
        number = error.errno if isinstance(error, OSError) else errno.ENOSPC if "No space left" in got else None
        remedy = _REMEDIES.get(number or 0, "choose another {option}").format(option=option)
        raise UserError(f"cannot write {path}", got=got, remedy=remedy) from error


def check_folder_writable(path: Path, option: str = "--out") -> None:
    """Without making it. Raises UserError if a folder `path` could not be written, before anything is worked out for it."""
    with writing(path, option):
        nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        if not nearest.is_dir():
            raise UserError(f"cannot write the folder {path}: {nearest} is a file", remedy=f"choose another {option}")
        # A trial, since rights alone do not tell: of /proc even root has all of them.
        os.rmdir(tempfile.mkdtemp(prefix=".eyas-", dir=nearest))


def check_file_writable(path: Path, option: str = "--out") -> None:
    """The same for a file, which may be there already."""
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder", remedy=f"give a file's name to {option}")
    check_folder_writable(path.parent, option)


def check_folder_free(path: Path) -> None:
    """Raises UserError if a folder `path` could not be written, or is there already and holds anything."""
    check_folder_writable(path)
    _refuse_occupied(path, lambda existing: False)


def _refuse_occupied(path: Path, may_replace: Callable[[Path], bool]) -> None:
    with writing(path):
        occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if occupied and not (path.is_dir() and may_replace(path)):
            raise UserError(f"{path} exists and is not empty", remedy="give another --out, or remove it first")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an existing file or folder against other processes; the system lets go of it if this one is killed.

    Raises UserError at once if another process holds it.
    """
    with writing(path):
        handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is writing {path}", remedy="wait for it, or choose another --out") from error
        yield
    finally:
        os.close(handle)  # also gives the lock back


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file name beside `path`; renamed over `path` if the body succeeds, removed if not."""
    temporary = _temporary(path)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            yield temporary
            _open_to_readers(temporary)
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _temporary(path: Path) -> Path:
    """Where `path` is written until it is whole; the name says which process of which machine writes it."""
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")


def _remove_leftovers(path: Path) -> None:
    """Clear away what processes of this machine that were killed meanwhile have left of `path`; it would lie there for good."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_HOST)}\.(\d+)\.tmp")
    for place in path.parent.iterdir():
        found = ours.fullmatch(place.name)
        if found is None or (int(found[1]) != os.getpid() and _is_alive(int(found[1]))):
            continue
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)  # another process may be doing the same
        else:
            place.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _open_to_readers(path: Path) -> None:
    """safetensors makes files that only their owner can read; a model is shared like any other file, as the umask says."""
    if path.is_file():
        path.chmod(0o666 & ~_UMASK)


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: Callable[[Path], bool] = lambda existing: False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes the place of `path` if the body succeeds.

    Args:
        overwrite: says whether an existing, non-empty folder is one of ours and may be replaced.

    Raises:
        UserError: `path` exists, is not empty and may not be replaced, or the disk is full.
    """
    _refuse_occupied(path, overwrite)
    path = path.resolve()  # "." has no name to put a temporary one beside
    temporary = _temporary(path)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(path)
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                _open_to_readers(file)
            _refuse_occupied(path, overwrite)  # another process may have finished it in the meantime
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; `what` names it in the error ("dump manifest", "draft config", ...).

    Raises UserError for anything else, and for a key that is there twice: readers would not agree on which one counts.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{what} is no ordinary file: {path}")  # a pipe or a device never ends
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, object_pairs_hook=_no_key_twice)
        if _SURROGATE.search(text):  # half a character cannot be printed or written again
            json.dumps(value, ensure_ascii=False).encode()
    except FileNotFoundError as error:
        raise UserError(f"{what} is missing: {path}", remedy="check the path; was the folder copied whole?") from error
    except IsADirectoryError as error:
        raise UserError(f"{what} is a folder, not a file: {path}") from error
    except OSError as error:
        raise UserError(f"{what} cannot be read: {path}", got=error.strerror, remedy="check the path and its permissions") from error
    except JSON_ERRORS as error:
        raise UserError(
            f"{what} is not valid JSON: {path}", got=json_problem(error), remedy="the file is damaged: copy or make it again"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{what} must hold a JSON object: {path}", got=type(value).__name__)
    return value


def read_small_json(path: Path, what: str) -> dict[str, Any]:
    """As `read_json`, but a file of an absurd size is refused before it is read."""
    if path.is_file() and path.stat().st_size > _MAX_JSON:
        raise UserError(f"{what} is too large to be one: {path}", got=f"{path.stat().st_size} bytes", allowed=f"{_MAX_JSON} bytes")
    return read_json(path, what)


def read_weight_map(index: Path) -> dict[str, str]:
    """Which tensor lies in which file beside `index`, a checkpoint's *.index.json.

    Raises UserError for an index that is damaged, or that names anything but weight files of its own folder.
    """
    places = read_small_json(index, "the index of the shards").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index}: weight_map is missing or empty", remedy="the file is damaged: copy it again")
    for name, file in places.items():
        plain = isinstance(file, str) and file == Path(file).name and file not in ("", ".", "..") and "\\" not in file
        if not plain or Path(file).suffix not in (".safetensors", ".bin"):
            raise UserError(
                f"{index}: {name} is said to lie outside of the folder or in a file of another kind",
                got=repr(file)[:120],
                allowed="the name of a .safetensors or .bin file beside the index",
            )
    return places


def json_problem(error: Exception) -> str:
    """What one of JSON_ERRORS says, without advice to change Python."""
    return "an integer of thousands of digits" if "set_int_max_str_digits" in str(error) else str(error)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"keys are given twice: {', '.join(twice)[:200]}")
    return value


def metadata_of(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file; tensors are not read."""
    try:
        with safe_open(path, framework="np") as opened:
            return dict(opened.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is missing or damaged", got=str(error).splitlines()[0], remedy="copy it again") from error


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
