"""Faults that the headers of a dump's shards show: shares of ranks, other states than named, formats, and what takes disk (A, I, J, M)."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file

from eyas.files import metadata_of, sha256_file
from seeded.dumps import NO_DRAFT, target_of
from seeded.edits import Tensors, copied, redump, replace_bytes
from seeded.registry import FILES, add
from seeded.sets import Set, make_dump


def every_shard(change: Callable[[Tensors], None]) -> Callable[[Set], Set]:
    """All shards rewritten; the manifest's checksums follow."""

    def plant(s: Set) -> Set:
        folder = copied(s.dump, s.work)
        manifest = json.loads((folder / "manifest.json").read_text())
        for shard in manifest["shards"]:
            path = folder / shard["file"]
            texts, held = metadata_of(path), dict(load_file(path))
            change(held)
            path.unlink()
            save_file({name: tensor.contiguous() for name, tensor in held.items()}, path, texts)
            shard.update(sha256=sha256_file(path), bytes=path.stat().st_size)
        replace_bytes(folder / "manifest.json", json.dumps(manifest).encode())
        return s.but(dump=folder, given=NO_DRAFT)

    return plant


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        held[name] = make(held[name]).clone()

    return change


def logits_too(held: Tensors) -> None:
    held["logits"] = torch.zeros(len(held["token_ids"]), 512)


def halved(held: Tensors) -> None:
    for name in ("states", "teacher"):
        held[name] = held[name].bfloat16()


def left_behind(s: Set) -> Set:
    """The shards of a run that was killed still lie there."""
    folder = copied(s.dump, s.work)
    for number in range(3):
        (folder / f"shard-{number:05d}.safetensors.part").write_bytes((folder / "shard-00000.safetensors").read_bytes())
    return s.but(dump=folder, given=NO_DRAFT)


def more_states(s: Set) -> Set:
    """All states of the target were captured for a draft that reads three."""
    make_dump(target_of(s.target), s.target, s.data, s.work / "all", taps="embed,layer:0,layer:1,layer:2,layer:3")
    return s.but(dump=s.work / "all", given=("target", "draft", "dump"))


def wiring_says(**fields: object) -> Callable[[Set], Set]:
    return lambda s: redump(s, lambda number, rows: None, fields).but(given=NO_DRAFT)


add("taps-impossible", "two states where three are named", every_shard(put("states", lambda held: held[:, :128])), depths=FILES)
add("taps-impossible", "four states where three belong", every_shard(put("states", lambda h: torch.cat([h, h[:, :64]], 1))), depths=FILES)
add("states-scattered", "one state where three are named", every_shard(put("states", lambda held: held[:, -64:])), depths=FILES)
add("states-scattered", "a quarter of the columns", every_shard(put("states", lambda held: held[:, :48])), "qwen3", depths=FILES)
add("states-scattered", "labels' state of half a width", every_shard(put("teacher", lambda held: held[:, :32])), depths=FILES)
add("dump-short", "a mask of two dimensions", every_shard(put("loss_mask", lambda held: held[:, None])), depths=FILES)
add("dump-short", "no labels", every_shard(lambda held: held.__delitem__("top1")), "qwen3", depths=FILES)
add("dump-changed", "bf16 where the manifest says fp32", every_shard(halved), depths=FILES)
add("dump-size", "logits that nothing reads", every_shard(logits_too), depths=FILES)
add("dump-size", "shards of a killed run", left_behind, depths=FILES)
add("dump-size", "every state for a draft that reads three", more_states, depths=FILES)
add("teacher-norm", "the record says that labels were not normed", wiring_says(teacher_norm_applied=False), depths=FILES)
add("teacher-layer", "the record says that labels failed their check", wiring_says(teacher_verified=False), "qwen3", depths=FILES)
