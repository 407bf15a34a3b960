"""Ways to change a copy of a folder, so that the change is the only thing wrong with it.

Copies are hard links: a file is only ever replaced, never written into. A draft or dump edited `honestly` says in its
wiring and checksums what its tensors now are, so that only the numbers can tell.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eyas.capture.rounding import to_int4
from eyas.draft.checkpoint import draft_wiring_fields, filled
from eyas.draft.config import DraftConfig
from eyas.files import metadata_of, sha256_file
from eyas.formats import export_draft
from eyas.taps import Tap
from eyas.wiring import WIRING_HASH, Wiring
from seeded.sets import Set

Tensors = dict[str, torch.Tensor]
_NUMBER = itertools.count()


def copied(folder: Path, work: Path) -> Path:
    out = work / f"{folder.name}-{next(_NUMBER)}"
    shutil.copytree(folder, out, copy_function=os.link)
    return out


def replace_bytes(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    replace_bytes(path, json.dumps(value).encode())


def set_keys(path: Path, changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> None:
    def change(value: dict[str, Any]) -> None:
        value.update(changes)
        for name in without:
            value.pop(name, None)

    edit_json(path, change)


def edit_tensors(path: Path, change: Callable[[Tensors], None], metadata: dict[str, str] | None = None) -> None:
    """The header's texts stay as they are unless others are given."""
    texts = metadata_of(path) if metadata is None else metadata
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    path.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, texts)


# -- names of states, by those that the draft of the set reads -----------------------------------------------------

Choice = Callable[[list[int], int], list[int]]


def further(taps: list[int], num_layers: int) -> list[int]:
    return [tap + 1 for tap in taps]


def earlier(taps: list[int], num_layers: int) -> list[int]:
    return [tap - 1 for tap in taps]


def in_reverse(taps: list[int], num_layers: int) -> list[int]:
    return taps[::-1]


def names_of(s: Set, choice: Choice) -> list[str]:
    """Names of the states that `choice` makes of the draft's boundaries and the target's number of layers."""
    wiring = json.loads((s.draft / "wiring.json").read_text())
    taps = [Tap.parse(name).boundary for name in wiring["taps"]]
    return [str(Tap(boundary)) for boundary in choice([tap for tap in taps if tap is not None], wiring["num_target_layers"])]


# -- drafts ----------------------------------------------------------------------------------------------------


def redraft(
    s: Set,
    tensors: Callable[[Tensors], None] = lambda held: None,
    config: Mapping[str, Any] | None = None,
    wiring: Mapping[str, Any] | None = None,
) -> Set:
    """The draft edited honestly: wiring and header follow the new config and tensors."""
    folder = copied(s.draft, s.work)
    weights = folder / "model.safetensors"
    changed_config = json.loads((folder / "config.json").read_text()) | dict(config or {})
    held = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    tensors(held)
    draft = filled(DraftConfig.from_json(changed_config, "config"), held)
    old = Wiring.from_json(json.loads((folder / "wiring.json").read_text()), "wiring")
    value = old.replace(**draft_wiring_fields(draft)).to_json() | dict(wiring or {})
    new = Wiring.from_json(value, "wiring")
    weights.unlink()
    save_file({name: tensor.contiguous() for name, tensor in held.items()}, weights, {WIRING_HASH: new.hash()})
    replace_bytes(folder / "config.json", json.dumps(changed_config).encode())
    replace_bytes(folder / "wiring.json", json.dumps(value).encode())
    return s.but(draft=folder)


def raw_draft(s: Set, config: Mapping[str, Any] | None = None, without: tuple[str, ...] = ()) -> Set:
    """The draft with keys of config.json changed and nothing else."""
    folder = copied(s.draft, s.work)
    set_keys(folder / "config.json", config or {}, without)
    return s.but(draft=folder)


def raw_tensors(s: Set, change: Callable[[Tensors], None]) -> Set:
    folder = copied(s.draft, s.work)
    edit_tensors(folder / "model.safetensors", change)
    return s.but(draft=folder)


def exported(s: Set, form: str = "speculators", bare: bool = True) -> Set:
    """The draft as another project would have written it; `bare`: without the wiring beside it."""
    out = s.work / f"{form}-{next(_NUMBER)}"
    export_draft(s.draft, form, out)
    if bare:
        for name in ("eyas_wiring.json", "eyas_trace.dat"):
            (out / name).unlink(missing_ok=True)
    return s.but(draft=out)


def foreign(
    s: Set,
    form: str = "speculators",
    config: Callable[[dict[str, Any]], None] = lambda value: None,
    tensors: Callable[[Tensors], None] | None = None,
) -> Set:
    """A bare export with config and tensors (by the format's own names) edited."""
    out = exported(s, form)
    edit_json(out.draft / "config.json", config)
    if tensors is not None:
        edit_tensors(out.draft / "model.safetensors", tensors, {"format": "pt"})
    return out


# -- dumps -----------------------------------------------------------------------------------------------------

Rows = dict[str, torch.Tensor]


def redump(
    s: Set,
    sample: Callable[[int, Rows], None] = lambda number, rows: None,
    wiring: Mapping[str, Any] | None = None,
    manifest: Callable[[dict[str, Any]], None] = lambda value: None,
    restamp: bool = True,
) -> Set:
    """The dump with each sample's rows edited in place; lengths stay. `restamp`: checksums and wiring hash follow."""
    folder = copied(s.dump, s.work)
    value = json.loads((folder / "manifest.json").read_text())
    new = Wiring.from_json(value["wiring"] | dict(wiring or {}), "wiring")
    value["wiring"] = new.to_json()
    for shard, plan in zip(value["shards"], value["batch_plan"]["shards"], strict=True):
        path = folder / shard["file"]
        held = {name: tensor.clone() for name, tensor in load_file(path).items()}
        numbers = [number for batch in plan for number in batch]
        offsets = held["offsets"].tolist()
        for place, number in enumerate(numbers):
            rows = {name: held[name][offsets[place] : offsets[place + 1]] for name in held if name != "offsets"}
            sample(number, rows)
        path.unlink()
        save_file(held, path, {WIRING_HASH: new.hash()})
        if restamp:
            shard.update(sha256=sha256_file(path), bytes=path.stat().st_size)
    manifest(value)
    replace_bytes(folder / "manifest.json", json.dumps(value).encode())
    return s.but(dump=folder)


def rolled(name: str, by: int) -> Callable[[int, Rows], None]:
    def change(number: int, rows: Rows) -> None:
        rows[name].copy_(rows[name].clone().roll(by, dims=0))

    return change


# -- targets ---------------------------------------------------------------------------------------------------


def retarget(s: Set, tensors: Callable[[Tensors], None] | None = None, config: Mapping[str, Any] | None = None) -> Set:
    folder = copied(s.target, s.work)
    if tensors is not None:
        edit_tensors(folder / "model.safetensors", tensors)
    if config is not None:
        set_keys(folder / "config.json", config)
    return s.but(target=folder)


def in_int4(s: Set) -> Set:
    """The target as a quantised copy has it after it is unpacked; embedding and head are spared, as they mostly are."""

    def change(held: Tensors) -> None:
        held.update({name: to_int4(weight) for name, weight in held.items() if ".layers." in name and weight.dim() == 2})

    return retarget(s, change)


def seeded_noise(like: torch.Tensor, seed: int = 5) -> torch.Tensor:
    """Normal numbers of the tensor's own spread."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * like.float().std()).to(like.dtype)


def fields(value: object) -> dict[str, Any]:
    return dataclasses.asdict(value)  # type: ignore[call-overload]
