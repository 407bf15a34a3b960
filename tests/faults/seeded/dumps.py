"""Faults in a dump: which states it holds, how rows stand to each other, its files, its texts (kinds A, B, D, I, K)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file, save_file

from eyas.capture.forward import capture_batch
from eyas.data.store import Dump
from eyas.taps import Tap
from eyas.targets.target import Target
from seeded.edits import Choice, Rows, copied, earlier, further, in_reverse, names_of, redump, replace_bytes, rolled
from seeded.registry import FILES, REPLAY, add, fault
from seeded.sets import FAMILIES, Set, load, make_dump, train_draft

NO_DRAFT = ("target", "dump")


@cache
def target_of(folder: Path) -> Target:
    return load(folder)


def recaptured(s: Set, choice: Choice) -> dict[int, torch.Tensor]:
    """Other states of the dump's own texts, by sample."""
    dump, target = Dump.open(s.dump), target_of(s.target)
    taps = tuple(Tap.parse(name) for name in names_of(s, choice))
    texts = [dump.sample(number).token_ids.tolist() for number in range(dump.num_samples)]
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for start in range(0, len(texts), 64):
            for place, item in enumerate(capture_batch(target, texts[start : start + 64], taps)):
                found[start + place] = item.states
    return found


def holding(choice: Choice, **wiring: Any) -> Callable[[Set], Set]:
    """The dump holds these states, and still says what it said."""

    def plant(s: Set) -> Set:
        states = recaptured(s, choice)

        def change(number: int, rows: Rows) -> None:
            rows["states"].copy_(states[number])

        return redump(s, change, wiring).but(given=("target", "draft", "dump"))

    return plant


# -- A, B: which states, and what was done to them ---------------------------------------------------------------

add("taps-shifted", "the dump's states are those of a layer later", holding(further), *FAMILIES)
add("taps-shifted", "the dump's states are those of a layer earlier", holding(earlier), "qwen3")
add("slot-order", "the dump's states stand in reverse", holding(in_reverse), "llama", "deepseek_v3")


def per_slot(change: Callable[[Target, torch.Tensor], torch.Tensor]) -> Callable[[Set], Set]:
    """Each captured state goes through `change`."""

    def plant(s: Set) -> Set:
        target = target_of(s.target)

        def each(number: int, rows: Rows) -> None:
            with torch.no_grad():
                parts = rows["states"].split(target.hidden_size, dim=1)
                rows["states"].copy_(torch.cat([change(target, part) for part in parts], dim=1))

        return redump(s, each).but(given=("target", "draft", "dump"))

    return plant


def teacher(make: Callable[[Set], Callable[[int, Rows], None]], **wiring: Any) -> Callable[[Set], Set]:
    return lambda s: redump(s, make(s), wiring).but(given=("target", "draft", "dump"))


def teacher_of(boundary: Callable[[int], int], norm: bool = True) -> Callable[[Set], Callable[[int, Rows], None]]:
    def make(s: Set) -> Callable[[int, Rows], None]:
        target, states = target_of(s.target), recaptured(s, lambda taps, layers: [boundary(layers)])

        def change(number: int, rows: Rows) -> None:
            with torch.no_grad():
                state = target.norm(states[number]) if norm else states[number]
                rows["teacher"].copy_(state)  # to the dump's dtype
                rows["top1"].copy_(target.head(state[None])[0].argmax(-1))

        return change

    return make


before_last = teacher_of(lambda layers: layers - 1)


def normed_twice(s: Set) -> Callable[[int, Rows], None]:
    target = target_of(s.target)

    def change(number: int, rows: Rows) -> None:
        with torch.no_grad():
            rows["teacher"].copy_(target.norm(rows["teacher"]))

    return change


add("norm-state", "states behind the final norm", per_slot(lambda target, state: target.norm(state)), "llama", "qwen3")
add("teacher-layer", "labels from the layer before the last", teacher(before_last), *FAMILIES)
add("teacher-layer", "labels from layer 1, as the wiring says", teacher(teacher_of(lambda layers: 2), teacher="layer:1"), "qwen3")
add("teacher-norm", "labels' state lacks the final norm", teacher(teacher_of(lambda layers: layers, norm=False)), "llama", "deepseek_v3")
add("teacher-norm", "labels' state was normed twice", teacher(normed_twice), "qwen3")


# -- D: rows against each other ----------------------------------------------------------------------------------


def both(*changes: Callable[[int, Rows], None]) -> Callable[[int, Rows], None]:
    def change(number: int, rows: Rows) -> None:
        for one in changes:
            one(number, rows)

    return change


def of_dump(change: Callable[[int, Rows], None]) -> Callable[[Set], Set]:
    return lambda s: redump(s, change).but(given=("target", "draft", "dump"))


def copied_text(number: int, rows: Rows) -> None:
    rows["top1"].copy_(rows["token_ids"].roll(-1))


add("pair-shift", "states one position late", of_dump(rolled("states", 1)), *FAMILIES)
add("pair-shift", "states one position early", of_dump(rolled("states", -1)), "qwen3")
add("pair-shift", "tokens one position late", of_dump(rolled("token_ids", 1)))
add("label-shift", "labels one position late", of_dump(both(rolled("teacher", 1), rolled("top1", 1))), "llama", "qwen3")
add("label-shift", "labels one position early", of_dump(both(rolled("teacher", -1), rolled("top1", -1))), "deepseek_v3")
add("teacher-norm", "labels' state at half its length", of_dump(lambda number, rows: rows["teacher"].mul_(0.5)), "llama", "deepseek_v3")
add("label-shift", "stored tokens one position late", of_dump(rolled("top1", 1)), "qwen3")
add("teacher-layer", "stored tokens are the text's", of_dump(copied_text))
add("mask-shift", "mask one position late", of_dump(rolled("loss_mask", 1)), "llama", "qwen3")
add("mask-shift", "mask two positions early", of_dump(rolled("loss_mask", -2)))


@fault("pair-shift", "trained on states one position late", "llama")
def trained_on_shifted(s: Set) -> Set:
    made = redump(s, rolled("states", 1))
    train_draft(target_of(s.target), made.dump, s.work / "shifted-draft", {})
    return s.but(draft=s.work / "shifted-draft", given=("target", "draft", "data"))


@fault("teacher-layer", "learnt from labels of layer 1", "llama")
def learnt_from_layer_1(s: Set) -> Set:
    """Nothing but the draft itself can tell."""
    made = redump(s, teacher_of(lambda layers: 2)(s))
    train_draft(target_of(s.target), made.dump, s.work / "mistaught-draft", {})
    return s.but(draft=s.work / "mistaught-draft", given=("target", "draft", "data"))


# -- I: integrity ------------------------------------------------------------------------------------------------


def first_shard(change: Callable[[Path], None]) -> Callable[[Set], Set]:
    def plant(s: Set) -> Set:
        folder = copied(s.dump, s.work)
        change(folder / "shard-00000.safetensors")
        return s.but(dump=folder, given=NO_DRAFT)

    return plant


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-4001] ^= 0xFF
    replace_bytes(path, bytes(content))


def poke(value: float, row: int = 3) -> Callable[[int, Rows], None]:
    def change(number: int, rows: Rows) -> None:
        if number % 20 == 0:
            rows["states"][row, 5:9] = value

    return change


def empty_head(number: int, rows: Rows) -> None:
    """What a prefix cache had already is missing, and zeros stand for it."""
    if number % 3 == 0:
        rows["states"][:8] = 0


def of_others(s: Set) -> Set:
    """Every sample has the states of the next ones, cut to its own length."""
    dump = Dump.open(s.dump)
    states = [dump.sample(number).states for number in range(dump.num_samples)]

    def change(number: int, rows: Rows) -> None:
        others = torch.cat([*states[number + 1 :], *states[:number]])
        rows["states"].copy_(others[: len(rows["states"])])

    return redump(s, change).but(given=("target", "draft", "dump"))


def of_others_now_and_then(s: Set) -> Set:
    """One sample in eight has another one's states."""
    dump = Dump.open(s.dump)
    states = [dump.sample(number).states for number in range(dump.num_samples)]

    def change(number: int, rows: Rows) -> None:
        if number % 8 == 0:
            others = torch.cat([*states[number + 1 :], *states[:number]])
            rows["states"].copy_(others[: len(rows["states"])])

    return redump(s, change).but(given=("target", "draft", "dump"))


def short_states(path: Path) -> None:
    held = dict(load_file(path))
    held["states"] = held["states"][:-8].clone()
    path.unlink()
    save_file(held, path)


def repeated(s: Set) -> Set:
    """The first training sample stands in the dump once more, in validation."""
    dump = Dump.open(s.dump)
    lengths = dump.lengths()
    pairs = [(t, v) for v in dump.validation for t in dump.training if lengths[t] == lengths[v]]
    twins = dict(pairs)
    held = {v: dump.sample(t) for t, v in twins.items()}

    def change(number: int, rows: Rows) -> None:
        if number in held:
            for name in rows:
                rows[name].copy_(getattr(held[number], name).to(rows[name].dtype))

    assert held, "two samples of equal length"
    return redump(s, change).but(given=("target", "dump"))


add("dump-broken", "a shard is missing", first_shard(lambda path: path.unlink()), depths=FILES)
add("dump-broken", "a shard is cut short", first_shard(lambda path: replace_bytes(path, path.read_bytes()[:-999])), depths=FILES)
add(
    "dump-broken",
    "capture never finished",
    lambda s: redump(s, manifest=lambda m: m.update(complete=False)).but(given=NO_DRAFT),
    depths=FILES,
)
add("dump-broken", "no manifest", lambda s: without_manifest(s), depths=FILES)
add("dump-changed", "a byte of a shard differs", first_shard(flip), "llama", "qwen3", depths=FILES)
add("dump-not-finite", "NaN in some rows", lambda s: redump(s, poke(float("nan"))).but(given=NO_DRAFT), "llama", "deepseek_v3")
add("dump-not-finite", "infinity in some rows", lambda s: redump(s, poke(float("inf"))).but(given=NO_DRAFT))
add("dump-not-finite", "huge values in some rows", lambda s: redump(s, poke(3e30)).but(given=NO_DRAFT), "qwen3")
add("dump-empty-rows", "a prefix of many samples is empty", lambda s: redump(s, empty_head).but(given=NO_DRAFT), "llama", "qwen3")
add("dump-other-rows", "states of other samples", of_others, *FAMILIES)
add("dump-other-rows", "states of other samples in one of eight", of_others_now_and_then, "llama", "deepseek_v3")
add("dump-short", "fewer states than tokens", first_shard(short_states), depths=FILES)
add("dump-size", "states in twice the width that the manifest says", lambda s: wide(s), depths=FILES)
add("dump-repeats", "validation repeats training", repeated, depths=REPLAY)
add("dump-wiring", "a dump of other taps", lambda s: of_other_taps(s), "llama", "qwen3")


def wide(s: Set) -> Set:
    """The manifest speaks of bf16; the shards hold fp32."""
    return redump(s, wiring={"states_dtype": "bfloat16"}).but(given=NO_DRAFT)


def of_other_taps(s: Set) -> Set:
    """Draft and dump are right, each for itself."""
    make_dump(target_of(s.target), s.target, s.data, s.work / "other-taps", taps="embed,layer:1,layer:3")
    return s.but(dump=s.work / "other-taps")


@fault("map-other", "a stale map beside the dump", depths=FILES)
def stale_map(s: Set) -> Set:
    folder = copied(s.dump, s.work)
    numpy.save(folder / "d2t.npy", load_file(s.draft / "model.safetensors")["d2t"].numpy() + 3)
    return s.but(dump=folder, given=("target", "draft", "dump"))


def without_manifest(s: Set) -> Set:
    folder = copied(s.dump, s.work)
    (folder / "manifest.json").unlink()
    return s.but(dump=folder, given=NO_DRAFT)


@fault("dump-changed", "a shard of another dump", depths=FILES)
def mixed_shards(s: Set) -> Set:
    other = redump(s, lambda number, rows: None, wiring={"taps": ["embed", "layer:1", "layer:3"]})
    made = copied(s.dump, s.work)
    replace_bytes(made / "shard-00000.safetensors", (other.dump / "shard-00000.safetensors").read_bytes())
    return s.but(dump=made, given=NO_DRAFT)
