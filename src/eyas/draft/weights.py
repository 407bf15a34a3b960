"""A draft's tensors on disk: model.safetensors as Eyas writes it, or shards with an index, as other tools cut it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eyas.errors import UserError
from eyas.files import read_weight_map

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_COPY = "copy the folder again, whole"


def has_weights(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def weight_files(folder: Path) -> list[Path]:
    """All files that hold tensors. Raises UserError if there are both a whole file and an index of shards."""
    whole, index = folder / WEIGHTS, folder / INDEX
    if not index.is_file():
        return [whole]
    if whole.is_file():
        raise UserError(
            f"{folder} holds its weights twice, and which of them count is not known",
            got=f"{WEIGHTS} and {INDEX}",
            remedy="remove the one that is not meant",
        )
    return [folder / name for name in sorted(set(read_weight_map(index).values()))]


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors by name. Raises UserError for files that are missing, damaged, or other ones than the index says."""
    files = weight_files(folder)
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            what = f"draft weights are missing or damaged: {path}"
            raise UserError(what, got=str(error).splitlines()[0], remedy="copy the file again") from error
        twice = sorted(set(found) & set(tensors))
        if twice:
            raise UserError(f"{path}: {twice[0]} is in another shard, too", remedy=_COPY)
        tensors |= found
    if files != [folder / WEIGHTS]:
        listed = read_weight_map(folder / INDEX)
        other = sorted(set(listed) ^ set(tensors))
        if other:
            raise UserError(f"the shards do not hold what {folder / INDEX} says", got=", ".join(other[:4]), remedy=_COPY)
    return tensors
