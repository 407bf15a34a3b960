"""Faults of kind M in a dump: what one rank held, left as it was."""

from __future__ import annotations

import torch

from eyas.capture.forward import capture_batch
from eyas.data.store import Dump
from eyas.taps import Tap
from seeded.dumps import NO_DRAFT, of_dump, recaptured, target_of
from seeded.edits import Rows, earlier, names_of, redump
from seeded.registry import add
from seeded.sets import FAMILIES, Set


def partial(s: Set) -> Set:
    """Each state lacks half of what its layer's last branch added."""
    before = recaptured(s, earlier)

    def change(number: int, rows: Rows) -> None:
        rows["states"].copy_(before[number] + 0.5 * (rows["states"] - before[number]))

    return redump(s, change).but(given=("target", "draft", "dump"))


def a_quarter(s: Set) -> Set:
    """What one of four ranks adds."""
    before = recaptured(s, earlier)

    def change(number: int, rows: Rows) -> None:
        rows["states"].copy_(before[number] + 0.25 * (rows["states"] - before[number]))

    return redump(s, change).but(given=NO_DRAFT)


def columns_of_rank_0(number: int, rows: Rows) -> None:
    width = rows["teacher"].shape[1]
    for part in rows["states"].split(width, dim=1):
        part[:, width // 2 :] = 0


def rows_of_rank_0(number: int, rows: Rows) -> None:
    rows["states"][len(rows["states"]) // 2 :] = 0


def zig_zag(number: int, rows: Rows) -> None:
    """Two ranks' blocks (0, 3) and (1, 2) one behind the other."""
    blocks = rows["states"].clone().tensor_split(4)
    rows["states"].copy_(torch.cat([blocks[0], blocks[3], blocks[1], blocks[2]]))


def decoded_without_context(s: Set) -> Set:
    """Behind the prompt, blocks of four tokens that see only themselves: what a prefill's gathered keys give in decode."""
    dump, target = Dump.open(s.dump), target_of(s.target)
    taps = tuple(Tap.parse(name) for name in names_of(s, lambda taps, num_layers: taps))

    def change(number: int, rows: Rows) -> None:
        ids = dump.sample(number).token_ids.tolist()
        blocks = [ids[start : start + 4] for start in range(len(ids) // 2, len(ids), 4)]
        with torch.no_grad():
            rows["states"][len(ids) // 2 :] = torch.cat([block.states for block in capture_batch(target, blocks, taps, want_top1=False)])

    return redump(s, change).but(given=("target", "draft", "dump"))


add("states-partial", "half of the last branch is missing", partial, "llama", "qwen3")
add("states-partial", "three quarters of the last branch are missing", a_quarter, "llama", "qwen3")
add("context-lost", "decoded tokens did not see the prompt", decoded_without_context, "llama")
add("states-scattered", "half of the columns are empty", of_dump(columns_of_rank_0), *FAMILIES[:2])
add("states-scattered", "half of the rows are empty", of_dump(rows_of_rank_0), "deepseek_v3")
add("states-scattered", "rows in two ranks' zig-zag order", of_dump(zig_zag), "llama")
