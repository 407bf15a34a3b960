"""Writing and reading small files so that a crash never leaves half a file behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eyas.errors import UserError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file name beside `path`; renamed over `path` if the body succeeds, removed if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}", got=error.strerror or str(error), remedy="free disk space or choose another --out"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


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
    occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if occupied and not (path.is_dir() and overwrite(path)):
        raise UserError(f"{path} exists and is not empty", remedy="give another --out, or remove it first")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}", got=error.strerror or str(error), remedy="free disk space or choose another --out"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; `what` names it in the error ("dump manifest", "draft config", ...)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{what} is missing: {path}", remedy="check the path; was the folder copied whole?") from error
    except IsADirectoryError as error:
        raise UserError(f"{what} is a folder, not a file: {path}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{what} is not valid JSON: {path}", got=str(error), remedy="the file is damaged: copy or make it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{what} must hold a JSON object: {path}", got=type(value).__name__)
    return value


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
