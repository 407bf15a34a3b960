"""Reading other people's files: nothing in them runs, and what is wrong with one is said by file and key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eyas.errors import UserError
from eyas.formats.safe import load_pickled


def files_below(path: Path, suffix: str) -> list[Path]:
    """All files of that ending, in order of name; numbers count as numbers.

    Raises UserError for links that lead out of the folder or nowhere: leaving them out would leave texts out.
    """
    if path.is_file():
        return [path] if path.name.endswith(suffix) else []
    root = path.resolve()
    found = [file for file in path.rglob(f"*{suffix}") if not file.is_dir()]
    for file in found:
        if not file.is_file():
            raise UserError(
                f"{file} is no file that can be read: a pipe, or a link that leads nowhere", remedy="copy the dump again, whole"
            )
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
    if tensor.ndim != 1 or not _holds_whole_numbers(tensor) or len(tensor) == 0:
        raise UserError(f"{path}: {key} must be one row of whole numbers", got=f"{tensor.dtype} {list(tensor.shape)}")
    return tensor.long()


def get_mask(values: Mapping[str, Any], key: str, path: Path, length: int) -> torch.Tensor | None:
    """A loss mask [T] of `length` entries, stored as a tensor or a list of 0 and 1; None if there is none."""
    mask = values.get(key)
    if mask is None:
        return None
    if isinstance(mask, list) and all(isinstance(one, int) for one in mask):
        mask = torch.tensor([one != 0 for one in mask] if set(mask) <= {0, 1} else mask)
    if isinstance(mask, torch.Tensor) and mask.is_floating_point():
        mask = mask.long() if bool(((mask == 0) | (mask == 1)).all()) else mask
    ids = get_ids({key: mask}, key, path)
    if len(ids) != length or not bool(((ids == 0) | (ids == 1)).all()):
        raise UserError(f"{path}: {key} does not fit its tokens", got=f"{len(ids)} entries", allowed=f"{length} entries, each 0 or 1")
    return ids.bool()


def scaled(values: Mapping[str, Any], key: str, path: Path) -> torch.Tensor:
    """Stored states, times `KEY_scales` in fp32 where an 8-bit dump has them: one factor a row, or a finer grid over the states."""
    states = get_tensor(values, key, path)
    if f"{key}_scales" not in values:
        return states
    scales = get_tensor(values, f"{key}_scales", path)
    fits = scales.ndim == states.ndim and all(mine in (1, theirs) for mine, theirs in zip(scales.shape, states.shape, strict=True))
    if not fits or not scales.is_floating_point() or not states.is_floating_point():
        raise UserError(
            f"{path}: {key}_scales does not fit {key}",
            got=f"{scales.dtype} {list(scales.shape)}",
            allowed=f"floats; each size 1, or that of {list(states.shape)}",
        )
    return states.float() * scales.float()


def _holds_whole_numbers(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


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
    if flat_TW.ndim != 2 or hidden_size == 0 or flat_TW.shape[1] % hidden_size or flat_TW.shape[1] == 0:
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
