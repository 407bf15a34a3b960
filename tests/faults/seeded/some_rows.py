"""Faults in some rows of a dump, which no median shows, and in what its manifest says of them (kinds I and K)."""

from __future__ import annotations

import json
from typing import Any

from seeded.dumps import NO_DRAFT, of_dump
from seeded.edits import Rows, copied, set_keys
from seeded.registry import FILES, add
from seeded.sets import Set


def stuck_labels(number: int, rows: Rows) -> None:
    """The last third of the labels' states is one state again and again."""
    first = len(rows["teacher"]) * 2 // 3
    rows["teacher"][first:] = rows["teacher"][first].clone()


def reversed_tokens(number: int, rows: Rows) -> None:
    rows["token_ids"].copy_(rows["token_ids"].flip(0))


def ragged_mask(number: int, rows: Rows) -> None:
    """Every third mark is the other way round."""
    rows["loss_mask"][::3] ^= 1


def said_otherwise(**wiring: Any) -> Any:
    """The manifest edited by hand: shards and their checksums are as they were."""

    def plant(s: Set) -> Set:
        folder = copied(s.dump, s.work)
        held = json.loads((folder / "manifest.json").read_text())["wiring"]
        set_keys(folder / "manifest.json", {"wiring": held | wiring})
        return s.but(dump=folder, given=NO_DRAFT)

    return plant


add("dump-other-rows", "a third of the labels' states are one state", of_dump(stuck_labels), "llama", "deepseek_v3")
add("dump-other-rows", "tokens in reverse", of_dump(reversed_tokens), "qwen3")
add("mask-rule", "every third mark is the other way round", of_dump(ragged_mask))
add("dump-broken", "a wiring of a format that nothing reads", said_otherwise(wiring_format=99), depths=FILES)
add("dump-changed", "other states written into the manifest", said_otherwise(taps=["layer:1", "layer:2", "layer:3"]), depths=FILES)
