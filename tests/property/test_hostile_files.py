"""Whatever is done to a file that somebody else wrote: an answer or exit 2 with the file, never a traceback, nothing half-written.

Artefacts of every reader (checkpoints of every project, dumps of every project, a draft, a trace, captured states) are copied,
one file is changed at random, and the command is run. The changes do not know the formats: bytes, links and pipes for any file;
odd values, keys and texts for JSON; odd tensors and headers for safetensors; odd objects and archives for pickled files.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eyas.cli.main import main
from eyas.draft.checkpoint import is_draft, read_draft
from eyas.formats import export_draft, import_draft
from eyas.taps import parse_taps

ROUNDTRIP = Path(__file__).parent.parent / "roundtrip"
TAPS = "layer:1,layer:7,layer:12"
SEEDS = 20  # a case
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


# -- artefacts and the commands that read them ---------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    folder: Path
    target: Path

    def command(self, case: str, path: Path, out: Path) -> list[str]:
        kind, name = case.split(" ")
        if kind == "checkpoint":
            return ["import", str(path), "--out", str(out), "--taps", TAPS, *(["--from", name] if name != "sidecar" else [])]
        if kind == "dump":
            taps = [] if name == "automodel" else ["--taps", "layer:0,layer:1,layer:2"]  # it states them
            return ["import", str(path), "--out", str(out), "--target", str(self.target), "--dtype", "fp32", *taps]
        trace, states, taps = path / "trace.safetensors", path / "states.safetensors", ["--taps", "embed,layer:1,layer:2"]
        commands = {
            "show": ["wiring", "show", str(path)],
            "translate": ["wiring", "translate", str(path), "--to", "vllm==0.33.0", "--target", str(self.folder / "small")],
            "export": ["export", str(path), "--to", "specforge", "--out", str(out)],
            "check": ["trace", "check", str(trace), str(states), *taps],
            "check-target": ["trace", "check", str(trace), str(states), *taps, "--target", str(self.target), "--dtype", "fp32"],
            "ranks": ["trace", "check", str(trace), str(states), str(path / "rank.safetensors"), *taps],
        }
        return commands[name]


CHECKPOINTS = sorted(path.name for path in (ROUNDTRIP / "golden").iterdir() if path.is_dir())
DUMPS = sorted(path.name for path in (ROUNDTRIP / "golden_dumps").iterdir() if path.is_dir())
CASES = [
    *(f"checkpoint {name}" for name in [*CHECKPOINTS, "sidecar"]),
    *(f"dump {name}" for name in DUMPS),
    *("draft show", "draft translate", "draft export", "trace check", "trace check-target", "trace ranks"),
]


@pytest.fixture(scope="module")
def world(tiny_targets, tmp_path_factory) -> Iterator[World]:
    """Healthy artefacts: one folder a case, copied before it is changed. The target, which is not hostile, is loaded once for all."""
    from eyas.capture.trace import named_states, record_trace
    from eyas.targets.loading import load_target

    folder = tmp_path_factory.mktemp("healthy")
    target = load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)
    trace = record_trace(target)
    (folder / "trace").mkdir()
    trace.save(folder / "trace" / "trace.safetensors")
    states = named_states(target, trace.token_ids.tolist())
    stack = torch.stack([states[name] for name in ("boundary:0", "boundary:2", "boundary:3")], dim=1)
    save_file({"token_ids": trace.token_ids, "hidden_states": stack}, folder / "trace" / "states.safetensors")
    shutil.copy(folder / "trace" / "states.safetensors", folder / "trace" / "rank.safetensors")
    for name in CHECKPOINTS:
        shutil.copytree(ROUNDTRIP / "golden" / name, folder / "checkpoint" / name)
    for name in DUMPS:
        shutil.copytree(ROUNDTRIP / "golden_dumps" / name, folder / "dump" / name)
    import_draft(ROUNDTRIP / "golden" / "eagle", folder / "draft", taps=parse_taps(TAPS))
    shutil.copy(folder / "trace" / "trace.safetensors", folder / "draft" / "trace.safetensors")
    export_draft(folder / "draft", "speculators", folder / "checkpoint" / "sidecar")
    sizes = {"num_hidden_layers": 16, "hidden_size": 8, "vocab_size": 24}
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyas.targets.loading.load_target", lambda *arguments, **options: target)
        yield World(folder, tiny_targets("llama"))


def artefact(world: World, case: str) -> Path:
    kind, name = case.split(" ")
    return world.folder / kind / name if kind in ("checkpoint", "dump") else world.folder / kind


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("case", CASES)
def test_a_healthy_artefact_is_understood(world: World, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Golden dumps hold numbers of no target: they are read whole, and then refused for that."""
    status, err = run(world.command(case, artefact(world, case), tmp_path / "out"), capsys)
    assert status == (2 if case.startswith("dump") else 0), err
    assert not case.startswith("dump") or "too few positions" in err or "first token" in err


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=SEEDS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9))
def test_a_changed_artefact_is_answered_or_refused(world: World, case: str, seed: int, tmp_path_factory, capsys) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("changed")
    try:
        path = Path(shutil.copytree(artefact(world, case), folder / "theirs"))
        file = rng.choice(sorted(item for item in path.rglob("*") if item.suffix in BY_ENDING))
        change = rng.choice([*ANY, *BY_ENDING[file.suffix], *BY_ENDING[file.suffix]])
        change(rng, file)
        before = sorted(item.name for item in path.rglob("*"))
        status, err = run(world.command(case, path, folder / "out"), capsys)
        what = f"{change.__name__} of {file.name}: exit {status}\n{err[-3000:]}"
        assert status in (0, 1, 2), what
        assert sorted(item.name for item in path.rglob("*")) == before, what  # also that no code in a pickle ran
        if status == 2:
            assert "error: " in err, what
            assert file.name in err or str(path) in err, what
            assert sorted(item.name for item in folder.iterdir()) == ["theirs"], what
        elif is_draft(folder / "out"):
            read_draft(folder / "out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
