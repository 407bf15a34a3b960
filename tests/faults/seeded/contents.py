"""Faults of kinds F and G in a draft's tensors: the vocabulary map, embedding and head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file

from seeded.edits import (
    Tensors,
    foreign,
    raw_tensors,
    redraft,
    retarget,
    seeded_noise,
)
from seeded.registry import FILES, add
from seeded.sets import FAMILIES, Set

# -- F: the map ------------------------------------------------------------------------------------------------


def ids_of(held: Tensors) -> torch.Tensor:
    return held["d2t"] + torch.arange(len(held["d2t"]))


def put_ids(held: Tensors, ids: torch.Tensor) -> None:
    held["d2t"] = ids - torch.arange(len(ids))
    if "t2d" in held:
        held["t2d"] = torch.zeros(len(held["t2d"]), dtype=torch.bool).index_fill_(0, ids.clamp(0, len(held["t2d"]) - 1), True)


def absolute(held: Tensors) -> None:
    held["d2t"] = ids_of(held)


def first_ids(held: Tensors) -> None:
    """As if there were no map: row i is token i. Every invariant holds."""
    put_ids(held, torch.arange(len(held["d2t"])))


def of_other_data(held: Tensors) -> None:
    drawn = torch.randperm(len(held["t2d"]), generator=torch.Generator().manual_seed(8))
    put_ids(held, drawn[: len(held["d2t"])].sort().values)


def one_further(held: Tensors) -> None:
    """Each row means the token of the row behind it."""
    ids = ids_of(held)
    spare = next(one for one in range(len(held["t2d"]) - 1, -1, -1) if not bool(held["t2d"][one]))
    put_ids(held, torch.cat([ids[1:], torch.tensor([spare])]).sort().values)


def shuffled_rows(held: Tensors) -> None:
    order = torch.randperm(len(held["lm_head.weight"]), generator=torch.Generator().manual_seed(2))
    held["lm_head.weight"] = held["lm_head.weight"][order]


def out_of_range(held: Tensors) -> None:
    held["d2t"][-3:] += 10_000


def twice_the_same(held: Tensors) -> None:
    ids = ids_of(held)
    ids[5] = ids[4]
    held["d2t"] = ids - torch.arange(len(ids))


def unmarked(held: Tensors) -> None:
    held["t2d"][held["t2d"].nonzero().flatten()[:7]] = False


def in_floats(held: Tensors) -> None:
    held["d2t"] = held["d2t"].float() + 0.5


def offsets_of_rows(held: Tensors) -> None:
    held["d2t"] = torch.arange(len(held["d2t"]))


def drop(*names: str) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        for name in names:
            held.pop(name, None)

    return change


def rows_moved(held: Tensors) -> None:
    held["lm_head.weight"] = held["lm_head.weight"].roll(1, 0)


def one_below(held: Tensors) -> None:
    held["d2t"] = (held["d2t"] - 1).int()


def absolute_in_32_bits(held: Tensors) -> None:
    held["d2t"] = ids_of(held).int()


def lying_head(held: Tensors) -> None:
    held["lm_head.weight"] = held["lm_head.weight"].T


def without_common_tokens(s: Set) -> Set:
    """A head for the tokens that are seldom seen: lawful in itself, and of little use."""
    counts = load_file(s.dump / "token_counts.safetensors")["counts"]

    def change(held: Tensors) -> None:
        ids = ids_of(held)
        kept = ids[counts[ids].argsort(descending=True, stable=True)[40:]].sort().values
        rows = torch.searchsorted(ids, kept)
        held["lm_head.weight"] = held["lm_head.weight"][rows]
        put_ids(held, kept)

    size = len(load_file(s.draft / "model.safetensors")["d2t"]) - 40
    return redraft(s, change, config={"draft_vocab_size": size}).but(given=("target", "draft", "data"))


add("map-absolute", "d2t holds ids", lambda s: foreign(s, tensors=absolute), *FAMILIES)
add("map-other", "no map: the first ids", lambda s: redraft(s, first_ids), *FAMILIES)
add("map-absolute", "d2t holds ids, in an Eyas folder", lambda s: raw_tensors(s, absolute), depths=FILES)
add("map-missing", "d2t and t2d left out", lambda s: foreign(s, tensors=drop("d2t", "t2d")), "llama", "qwen3", depths=FILES)
add("map-broken", "ids out of range", lambda s: foreign(s, tensors=out_of_range), depths=FILES)
add("map-broken", "two rows for one token", lambda s: foreign(s, tensors=twice_the_same), "deepseek_v3", depths=FILES)
add("map-broken", "t2d marks fewer tokens", lambda s: foreign(s, tensors=unmarked), depths=FILES)
add("map-broken", "d2t in floats", lambda s: foreign(s, tensors=in_floats), "qwen3", depths=FILES)
add("map-broken", "d2t is 0, 1, 2, ...", lambda s: foreign(s, tensors=offsets_of_rows), depths=FILES)
add("map-other", "map of other data", lambda s: redraft(s, of_other_data), "llama", "qwen3")
add("map-other", "rows of the head shuffled", lambda s: redraft(s, shuffled_rows), "deepseek_v3")
add("map-other", "each row one token further", lambda s: redraft(s, one_further))
add("map-other", "lm_head a row further than its map", lambda s: redraft(s, rows_moved), "qwen3")
add("map-broken", "ids in 32 bits, one below their own", lambda s: foreign(s, tensors=one_below), depths=FILES)
add("map-absolute", "ids in 32 bits where offsets belong", lambda s: foreign(s, tensors=absolute_in_32_bits), depths=FILES)
add("shape-differs", "lm_head lies on its side", lambda s: foreign(s, tensors=lying_head), depths=FILES)
add("map-coverage", "the common tokens are left out", without_common_tokens, "llama", "qwen3")


# -- G: embedding and head -------------------------------------------------------------------------------------


def random_head(held: Tensors) -> None:
    held["lm_head.weight"] = seeded_noise(held["lm_head.weight"])


def with_embedding(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Set], Set]:
    """A foreign checkpoint that carries an embedding, made from the target's."""

    def plant(s: Set) -> Set:
        theirs = load_file(s.target / "model.safetensors")["model.embed_tokens.weight"]

        def change(held: Tensors) -> None:
            held["embed_tokens.weight"] = make(theirs.clone()).to(held["fc.weight"].dtype)

        return foreign(s, tensors=change)

    return plant


def half_right(table: torch.Tensor) -> torch.Tensor:
    table[len(table) // 2 :] = seeded_noise(table[len(table) // 2 :])
    return table


add("head-foreign", "lm_head at random", lambda s: redraft(s, random_head), *FAMILIES)
add("embedding-foreign", "embedding at random", with_embedding(seeded_noise), *FAMILIES)
add("head-missing", "no lm_head", lambda s: foreign(s, tensors=drop("lm_head.weight")), "llama", "qwen3", depths=FILES)
add("head-missing", "no lm_head in an Eyas folder", lambda s: raw_tensors(s, drop("lm_head.weight")), depths=FILES)
add("embedding-foreign", "right on the first half of its rows", with_embedding(half_right))
add("embedding-foreign", "embedding scaled by the root of its width", with_embedding(lambda table: table * 8.0), "qwen3")
add("embedding-foreign", "rows moved by one", with_embedding(lambda table: table.roll(1, 0)))
add("target-head", "an untied target without lm_head", lambda s: retarget(s, drop("lm_head.weight")), depths=FILES)
