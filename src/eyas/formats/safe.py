"""Reading a folder that somebody else wrote: nothing in it is run, trusted in size, or followed out of the folder."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from eyas.errors import UserError, in_words
from eyas.files import read_small_json, read_weight_map

CONFIG = "config.json"
_MAX_HEADER = 100_000_000  # the safetensors library's own limit
_SLACK = 1 << 20  # what a small view of a tensor, or the records of a zip file, may take beyond the file's own length
_COPY = "the file is damaged: copy it again"


@dataclass(frozen=True)
class Foreign:
    """`config` is config.json as it stands. `metadata` are the texts in the headers of the weight files, taken together."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]
    weight_files: tuple[str, ...]

    def where(self, name: str) -> str:
        """The file or folder that an error about this tensor names."""
        return str(self.folder / self.weight_files[0]) if len(self.weight_files) == 1 else f"{self.folder} ({name})"


def read_foreign(folder: Path) -> Foreign:
    """Config and weights of a checkpoint's folder: safetensors or pickled, whole or in shards.

    Raises UserError that names the file and key for whatever is missing, damaged or hostile.
    """
    if not folder.is_dir():
        raise UserError(f"not a folder: {folder}", remedy="give the folder that holds config.json and the weights")
    config = read_small_json(folder / CONFIG, "the checkpoint's config")
    files, index = _weight_files(folder)
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        found, texts = read_tensors(folder / file)
        for name in sorted(set(found) & set(tensors)):
            raise UserError(f"{folder / file}: {name} is in another shard, too", remedy="which one counts is not known: export it again")
        if index is not None:
            _check_shard(folder / file, set(found), {name for name, shard in index.items() if shard == file})
        tensors |= found
        metadata |= texts
    return Foreign(folder, config, tensors, metadata, files)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """All tensors of one file, on the CPU, and the texts in its header. Raises UserError for a file that holds anything else."""
    if not path.is_file():
        raise UserError(f"weights are missing: {path}", remedy="was the folder copied whole?")
    return _read_safetensors(path) if path.suffix == ".safetensors" else (_only_tensors(load_pickled(path), path), {})


def load_pickled(path: Path) -> Any:
    """What a pickled file holds, if that is made of plain tensors, numbers, texts and containers, no larger than the file itself.

    Raises UserError otherwise.
    """
    _refuse_compressed(path)
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or damaged pickle fails in any way it likes
        words = str(error).strip().splitlines() or [""]
        named = next((line.strip() for line in words if "GLOBAL" in line or "global" in line), words[0])  # what it wanted to call
        raise UserError(
            f"{path} cannot be read as tensors alone",
            got=f"{type(error).__name__}: {named[:160]}",
            remedy="code in pickled files is never run: save it as safetensors with the project that wrote it",
        ) from error
    _check_tensors(value, path)
    return value


def _weight_files(folder: Path) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    """The names of the weight files, and which tensor lies in which if an index says so."""
    for stem, ending in (("model", "safetensors"), ("pytorch_model", "bin")):
        index = folder / f"{stem}.{ending}.index.json"
        if index.is_file():
            places = read_weight_map(index)
            return tuple(sorted(set(places.values()))), places
        if (folder / f"{stem}.{ending}").is_file():
            return (f"{stem}.{ending}",), None
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return (found[0],), None
    raise UserError(
        f"{folder} holds no weights that can be told",
        got=found or sorted(path.name for path in folder.iterdir())[:5] or "an empty folder",
        allowed="model.safetensors, pytorch_model.bin, or either one's index.json with its shards",
    )


def _check_shard(path: Path, found: set[str], listed: set[str]) -> None:
    if found != listed:
        raise UserError(
            f"{path} does not hold what the index says",
            got=f"missing {in_words(sorted(listed - found)[:5])}; not listed {in_words(sorted(found - listed)[:5])}",
            remedy="files of two checkpoints were mixed, or a shard was not copied: copy the folder again, whole",
        )


def _read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        start = stream.read(8)
    header = struct.unpack("<Q", start)[0] if len(start) == 8 else None
    if header is None or header > min(size - 8, _MAX_HEADER):
        raise UserError(
            f"{path} is not a safetensors file, or only a part of one",
            got=f"a header of {header} bytes in a file of {size}" if header is not None else f"{size} bytes",
            remedy=_COPY,
        )
    tensors = {}
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                tensors[name] = opened.get_tensor(name)
    except Exception as error:  # the library complains of an odd header in many ways
        words = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"{path} is damaged", got=words[0][:200], remedy=_COPY) from error
    return tensors, metadata


def _only_tensors(value: Any, path: Path) -> dict[str, torch.Tensor]:
    if not isinstance(value, dict) or not value:
        raise UserError(f"{path} holds no table of tensors", got=type(value).__name__)
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise UserError(f"{path}: {str(name)[:80]!r} is not a plain tensor", got=type(tensor).__name__)
    return value


def _refuse_compressed(path: Path) -> None:
    """torch.save does not compress: a file that grows when it is opened was made to fill the memory."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as opened:
            grown = sum(entry.file_size for entry in opened.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # no zip file, or a damaged one: torch.load says so
    if grown > size + _SLACK:
        raise UserError(f"{path} claims to hold more than it is long", got=f"{grown} bytes in a file of {size}", remedy=_COPY)


def _check_tensors(value: Any, path: Path) -> None:
    """Raises UserError for a tensor, anywhere in `value`, that is not plain or that is larger than the file that it came from."""
    most = path.stat().st_size + _SLACK
    left, seen = [("", value)], set()
    while left:
        name, part = left.pop()
        if id(part) in seen:  # containers may hold each other
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            left += [(str(key)[:80] if isinstance(key, str | int) else name, inner) for key, inner in part.items()]
        elif isinstance(part, list | tuple | set | frozenset):
            left += [(name, inner) for inner in part]
        elif isinstance(part, torch.Tensor):
            if part.layout != torch.strided or part.device.type != "cpu" or part.is_quantized:
                raise UserError(f"{path}: {name!r} is not a plain tensor", got=f"{part.layout}, {part.dtype}, on {part.device}")
            if max(part.numel() * part.element_size(), part.untyped_storage().nbytes()) > most:
                raise UserError(f"{path}: {name!r} claims more numbers than the file holds", got=list(part.shape))
