"""The headers of safetensors files, without a tensor and without torch: names, dtypes, shapes, and whether all bytes are there."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.files import JSON_ERRORS

_MAX_HEADER = 100_000_000
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorInfo:
    """`file` is the file's name."""

    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class Weights:
    """The tensors of a folder. `problems` say, in words, which files are missing or damaged; `pickled` names files not read here."""

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    pickled: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self.tensors.get(name)
        return None if info is None else info.shape


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str], str | None]:
    """(tensors, texts, what is wrong or None)."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= min(size - 8, _MAX_HEADER):
                return {}, {}, f"{path.name} is no safetensors file, or only its beginning ({size} bytes)"
            header = json.loads(stream.read(length))
    except OSError as error:
        return {}, {}, f"{path.name} cannot be read: {error.strerror}"
    except JSON_ERRORS as error:
        return {}, {}, f"{path.name} has a damaged header: {error}"
    return _parse(header, path.name, size - 8 - length)


def _parse(header: Any, name: str, num_bytes: int) -> tuple[dict[str, TensorInfo], dict[str, str], str | None]:
    if not isinstance(header, dict):
        return {}, {}, f"{name} has a header that is no table"
    texts = header.pop("__metadata__", {})
    found: dict[str, TensorInfo] = {}
    end = 0
    for key, value in header.items():
        try:
            dtype, shape, (first, last) = str(value["dtype"]), tuple(int(part) for part in value["shape"]), value["data_offsets"]
            wanted = math.prod(shape) * _BYTES.get(dtype, 1)
            if last - first != wanted or first < 0:
                return found, {}, f"{name}: {key} has {last - first} bytes where its shape wants {wanted}"
        except (KeyError, TypeError, ValueError):
            return found, {}, f"{name}: the header's entry for {key} is damaged"
        found[key] = TensorInfo(dtype, shape, name)
        end = max(end, int(last))
    texts = {str(key): str(value) for key, value in texts.items()} if isinstance(texts, dict) else {}
    short = f"{name} is cut short: {num_bytes} of {end} bytes of tensors are there" if end > num_bytes else None
    return found, texts, short


def read_weights(folder: Path) -> Weights:
    """All safetensors of a model's folder, through its index where there is one."""
    names, listed, problems = _files(folder)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for name in names:
        found, texts, problem = read_header(folder / name)
        problems += [problem] if problem else []
        problems += [f"{key} lies in two files, {tensors[key].file} and {name}" for key in sorted(set(found) & set(tensors))[:3]]
        tensors |= found
        metadata |= texts
    absent = sorted(set(listed) - set(tensors)) if not problems else []
    if absent:
        problems.append(f"the index names {len(absent)} tensors that no file holds, such as {absent[0]}")
    pickled = tuple(sorted(path.name for ending in ("*.bin", "*.pt", "*.pth") for path in folder.glob(ending)))
    if not names and not pickled:
        problems.append("there are no weights: neither *.safetensors nor *.bin")
    return Weights(tensors, metadata, tuple(problems), pickled, tuple(names))


def _files(folder: Path) -> tuple[list[str], dict[str, str], list[str]]:
    """(file names, tensor -> file as the index says, what is wrong)."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        found = sorted(path.name for path in folder.glob("*.safetensors") if path.name != "trace.safetensors")
        return found, {}, []
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(key): Path(str(value)).name for key, value in places.items()}
    except (OSError, KeyError, TypeError, AttributeError, *JSON_ERRORS) as error:
        return [], {}, [f"{index.name} is damaged: {error}"]
    missing = sorted({name for name in names.values() if not (folder / name).is_file()})
    return (
        sorted(set(names.values()) - set(missing)),
        {key: name for key, name in names.items() if name not in missing},
        [f"{name} is named by the index and is not there" for name in missing],
    )
