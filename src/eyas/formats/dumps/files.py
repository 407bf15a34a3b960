"""Reading other people's files: nothing in them runs, and what is wrong with one is said by file and key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eyas.errors import UserError
from eyas.formats.safe import load_pickled


def files_below(path: Path, suffix: str) -> list[Path]:
    """All files of that ending, in order of name; numbers count as numbers. Links that lead out of the folder are refused."""
    if path.is_file():
        return [path] if path.name.endswith(suffix) else []
    root = path.resolve()
    found = [file for file in path.rglob(f"*{suffix}") if file.is_file()]
    for file in found:
        if not file.resolve().is_relative_to(root):
            raise UserError(f"{file} leads out of {path}", got=str(file.resolve()), remedy="copy the files themselves, not links")
    return sorted(found, key=lambda file: _natural(str(file.relative_to(path))))


def read_mapping(path: Path) -> Mapping[str, Any]:
    """A file of torch.save that holds a mapping; only tensors and plain values are unpickled, code is refused."""
    value = load_pickled(path)
    if not isinstance(value, Mapping):
        raise UserError(f"{path} holds no mapping of names to tensors", got=type(value).__name__)
    return value


def get_tensor(values: Mapping[str, Any], key: str, path: Path) -> torch.Tensor:
    """Raises UserError if `key` is missing or no tensor."""
    if key not in values:
        raise UserError(f"{path} lacks {key}", got=sorted(map(str, values))[:8])
    value = values[key]
    if not isinstance(value, torch.Tensor):
        raise UserError(f"{path}: {key} is not a tensor", got=type(value).__name__)
    return value


def get_ids(values: Mapping[str, Any], key: str, path: Path) -> torch.Tensor:
    """Token ids or a mask, [T]; a leading batch of one is taken off."""
    tensor = get_tensor(values, key, path)
    if tensor.ndim == 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 1 or tensor.is_floating_point() or len(tensor) == 0:
        raise UserError(f"{path}: {key} must be one row of whole numbers", got=f"{tensor.dtype} {list(tensor.shape)}")
    return tensor.long()


def get_states(values: Mapping[str, Any], key: str, path: Path, length: int) -> torch.Tensor:
    """States [T, ...] in a float dtype; a leading batch of one is taken off."""
    tensor = get_tensor(values, key, path)
    if tensor.ndim >= 3 and tensor.shape[0] == 1 and tensor.shape[1] == length:
        tensor = tensor[0]
    if not tensor.is_floating_point() or tensor.ndim < 2 or len(tensor) != length:
        raise UserError(
            f"{path}: {key} does not fit its tokens", got=f"{tensor.dtype} {list(tensor.shape)}", allowed=f"floats, {length} rows"
        )
    return tensor


def split_slots(flat_TW: torch.Tensor, hidden_size: int, key: str, path: Path) -> torch.Tensor:
    """Concatenated states [T, n·H] to [T, n, H]. Raises UserError if they are not whole states."""
    if flat_TW.ndim != 2 or flat_TW.shape[1] % hidden_size or flat_TW.shape[1] == 0:
        raise UserError(f"{path}: {key} is not a whole number of states", got=list(flat_TW.shape), allowed=f"a multiple of {hidden_size}")
    return flat_TW.unflatten(1, (-1, hidden_size))


def _natural(name: str) -> tuple[object, ...]:
    """hs_2 before hs_10."""
    parts: list[object] = []
    number = ""
    for sign in name + " ":
        if sign in "0123456789":
            number += sign
            continue
        if number:
            parts.append((0, int(number), ""))
            number = ""
        parts.append((1, 0, sign))
    return tuple(parts)
