"""Changes at random to one file, which do not know its format: ANY file, and more BY_ENDING."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[random.Random, Path], None]


# -- changes to any file -------------------------------------------------------------------------------------------


def cut_short(rng: random.Random, file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def flip_bytes(rng: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 4, 32])):
        content[rng.randrange(min(len(content), rng.choice([64, 1 << 20])))] = rng.randrange(256)
    file.write_bytes(content)


def replace_by_bytes(rng: random.Random, file: Path) -> None:
    file.write_bytes(
        rng.choice([b"", b"\0" * 64, b"\xff" * 64, rng.randbytes(200), struct.pack("<Q", 200 << 30) + b"{}", b"PK\x03\x04", b"\x80\x02"])
    )


def replace_by_something_else(rng: random.Random, file: Path) -> None:
    file.unlink()
    kind = rng.choice(["nothing", "folder", "pipe", "link to nowhere", "link to itself", "device", "link out"])
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind != "nothing":
        target = {"link to nowhere": "/nonexistent/x", "link to itself": file.name, "device": "/dev/zero", "link out": "/etc/hostname"}[
            kind
        ]
        file.symlink_to(target)


# -- changes to JSON -----------------------------------------------------------------------------------------------

ODD_TEXTS = [
    *(
        "null",
        "true",
        "-1",
        "0",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "1e-320",
        "9" * 4000,
        "9" * 5000,
        "1" + "0" * 30,
        "0.5",
        '""',
        '"x"',
    ),
    *(
        "[]",
        "{}",
        "[[]]",
        '{"a": {}}',
        "[null]",
        '["x"]',
        "[1, 2, 3]",
        "[-1]",
        "[" * 100_000,
        '{"a":' * 100_000,
        '"\\ud800"',
        '"\\u0000"',
        '"../.."',
    ),
    *(
        '"/etc/passwd"',
        '{"rope_type": "yarn"}',
        '{"rope_type": [], "factor": "x", "rope_theta": {}}',
        '[{"a": 1}]',
        "2147483648",
        "1048576",
        '"' + "x" * 9000 + '"',
    ),
]
HOLE = "the hole that a test cut"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def odd_json(rng: random.Random, text: str) -> str:
    """The text with one of its values, keys or members changed."""
    value = json.loads(text)
    place = rng.choice(places(value)[1:])
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    kind = rng.choice(["value", "value", "value", "value", "less", "more", "twice"])
    if kind == "less":
        del holder[place[-1]]
    elif kind == "more" and isinstance(holder, dict):
        holder[rng.choice(["surprise", "auto_map", "__class__", ""])] = rng.choice([None, "x", {}, 3])
    elif kind == "twice" and isinstance(holder, dict):
        held, holder[place[-1]] = holder[place[-1]], HOLE
        return json.dumps(value).replace(json.dumps(HOLE), f"{json.dumps(held)}, {json.dumps(place[-1])}: {json.dumps(held)}", 1)
    else:
        holder[place[-1]] = HOLE
    return json.dumps(value).replace(json.dumps(HOLE), rng.choice(ODD_TEXTS), 1)


def change_json(rng: random.Random, file: Path) -> None:
    file.write_text(odd_json(rng, file.read_text()))


# -- changes to tensors --------------------------------------------------------------------------------------------


def odd_tensor(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.clone().flatten()
    shape = tuple(tensor.shape)
    changes: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.to(
            rng.choice([torch.int8, torch.bool, torch.float64, torch.float16, torch.complex64, torch.float8_e4m3fn, torch.uint8])
        ),
        lambda: torch.full(shape, rng.choice([float("nan"), float("inf"), -1e30, 0.0])).to(
            tensor.dtype if tensor.is_floating_point() else torch.float32
        ),
        lambda: torch.full(shape, rng.choice([-1, 0, 1, 2**31 - 1])).to(tensor.dtype),
        lambda: tensor[:-1].clone() if tensor.ndim and len(tensor) else tensor,
        lambda: tensor[None].clone(),
        lambda: flat,
        lambda: torch.zeros(rng.choice([(), (0,), (1,), (0, *shape), (*shape, 0), (*shape[:-1], 0), (1, *shape), (2, 2, 2, 2, 2)])).to(
            tensor.dtype
        ),
        lambda: tensor.transpose(0, -1).contiguous() if tensor.ndim > 1 else tensor.flip(0) if tensor.ndim else tensor,
        lambda: flat[torch.randperm(len(flat), generator=torch.Generator().manual_seed(rng.randrange(99)))].view(shape),
    ]
    return rng.choice(changes)()


def change_tensors(rng: random.Random, file: Path) -> None:
    with open(file, "rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    kind = rng.choice(["odd", "odd", "odd", "odd", "less", "more", "named otherwise", "text"])
    metadata = header.get("__metadata__")
    if kind == "less":
        del tensors[name]
    elif kind == "more":
        tensors[rng.choice(["surprise", "layers.1.mlp.up_proj.weight", "hidden_states_scales", "loss_mask", "", "a" * 5000, "fc.bias"])] = (
            torch.ones(3)
        )
    elif kind == "named otherwise":
        tensors[rng.choice([name.upper(), "model." + name, name + "_scale"])] = tensors.pop(name)
    elif kind == "text" and metadata:
        key = rng.choice(sorted(metadata))
        metadata[key] = odd_json(rng, metadata[key]) if metadata[key].startswith("{") else rng.choice(["", "x", "\0"])
    else:
        tensors[name] = odd_tensor(rng, tensors[name])
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, file, metadata=metadata)


def change_header(rng: random.Random, file: Path) -> None:
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    try:
        header = odd_json(rng, content[8 : 8 + length].decode()).encode("utf-8", "surrogatepass")
    except ValueError:  # a number that Python itself does not write
        header = b"{"
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


# -- changes to pickled files --------------------------------------------------------------------------------------


class Bomb:
    """Leaves a mark when it is unpickled by a reader that is not careful."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def change_pickle(rng: random.Random, file: Path) -> None:
    values = dict(torch.load(file, weights_only=True))
    key = rng.choice(sorted(values))
    looped: list[Any] = []
    looped.append(looped)
    odd: list[Any] = [
        *(None, 3, -1.5, "x", "\ud800", True, [], {}, (), [None], [[0]], {"a": torch.ones(2)}, looped, {1: 2}, b"x"),
        *(
            torch.zeros(1).expand(10**11),
            torch.ones(3, 3).to_sparse(),
            torch.empty(5, device="meta"),
            torch.quantize_per_tensor(torch.ones(4), 1, 0, torch.qint8),
        ),
        Bomb(str(file.parent / "mark")),
    ]
    kind = rng.choice(["odd", "odd", "tensor", "tensor", "tensor", "less", "more", "other whole", "raw", "grown"])
    if kind == "less":
        del values[key]
    elif kind == "more":
        values[rng.choice(["surprise", 3, ("a", 1), "hidden_states_prenorm", "conversation_id"])] = rng.choice(odd)
    elif kind == "tensor" and isinstance(values[key], torch.Tensor):
        values[key] = odd_tensor(rng, values[key])
    elif kind == "odd":
        values[key] = rng.choice(odd)
    whole = rng.choice(odd) if kind == "other whole" else values
    if kind == "raw":
        file.write_bytes(pickle.dumps(rng.choice([Bomb(str(file.parent / "mark")), {"input_ids": [1]}, [1] * 5])))
        return
    torch.save(whole, file)
    if kind == "grown":  # an archive that fills the memory when it is opened
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data/99", b"\0" * (8 << 20))


ANY: list[Change] = [cut_short, flip_bytes, replace_by_bytes, replace_by_something_else]
BY_ENDING: dict[str, list[Change]] = {
    ".json": [change_json, change_json, change_json],
    ".safetensors": [change_tensors, change_tensors, change_tensors, change_header],
    ".dat": [change_tensors, change_header],
    **{ending: [change_pickle, change_pickle, change_pickle] for ending in (".bin", ".pt", ".ckpt")},
}
