"""Faults of kinds F, G, H and N in a draft's files: the vocabulary map, embedding and head, keys and shapes, number formats."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import torch
from safetensors.torch import load_file

from seeded.behaviour import layer
from seeded.edits import (
    Tensors,
    copied,
    edit_tensors,
    exported,
    foreign,
    raw_draft,
    raw_tensors,
    redraft,
    replace_bytes,
    retarget,
    seeded_noise,
    set_keys,
)
from seeded.registry import FILES, REPLAY, add, fault
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


for family in FAMILIES:
    add("map-absolute", "d2t holds ids", lambda s: foreign(s, tensors=absolute), family)
    add("map-other", "no map: the first ids", lambda s: redraft(s, first_ids), family)
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


for family in FAMILIES:
    add("head-foreign", "lm_head at random", lambda s: redraft(s, random_head), family)
    add("embedding-foreign", "embedding at random", with_embedding(seeded_noise), family)
add("head-missing", "no lm_head", lambda s: foreign(s, tensors=drop("lm_head.weight")), "llama", "qwen3", depths=FILES)
add("head-missing", "no lm_head in an Eyas folder", lambda s: raw_tensors(s, drop("lm_head.weight")), depths=FILES)
add("embedding-foreign", "right on the first half of its rows", with_embedding(half_right))
add("embedding-foreign", "embedding scaled by the root of its width", with_embedding(lambda table: table * 8.0), "qwen3")
add("embedding-foreign", "rows moved by one", with_embedding(lambda table: table.roll(1, 0)))
add("target-head", "an untied target without lm_head", lambda s: retarget(s, drop("lm_head.weight")), depths=FILES)


# -- H: checkpoint and config ----------------------------------------------------------------------------------


def broken_file(name: str, content: bytes | None) -> Callable[[Set], Set]:
    def plant(s: Set) -> Set:
        folder = copied(s.draft, s.work)
        if content is None:
            (folder / name).unlink()
        else:
            replace_bytes(folder / name, content)
        return s.but(draft=folder)

    return plant


def cut(s: Set) -> Set:
    folder = copied(s.draft, s.work)
    path = folder / "model.safetensors"
    replace_bytes(path, path.read_bytes()[:-5000])
    return s.but(draft=folder)


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        for name in list(held):
            if old in name:
                held[name.replace(old, new)] = held.pop(name)

    return change


def spare_tensor(held: Tensors) -> None:
    held["layers.1.mlp.up_proj.weight"] = held["layers.0.mlp.up_proj.weight"].clone()


def narrow_norm(held: Tensors) -> None:
    held["norm.weight"] = held["norm.weight"][:-1]


def missing_shard(s: Set) -> Set:
    made = exported(s)
    keys = list(load_file(made.draft / "model.safetensors"))
    (made.draft / "model.safetensors").rename(made.draft / "model-00001-of-00002.safetensors")
    index = {name: f"model-0000{1 + (name == keys[-1])}-of-00002.safetensors" for name in keys}
    (made.draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return made


def pickled_code(s: Set) -> Set:
    made = exported(s)
    (made.draft / "model.safetensors").unlink()
    (made.draft / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": print}))
    return made


def constant(name: str, value: float) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        held[name] = torch.full_like(held[name], value)

    return change


def at_random(name: str) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        held[name] = torch.randn(held[name].shape, generator=torch.Generator().manual_seed(4)).to(held[name].dtype) * 0.02

    return change


def other_wiring(s: Set) -> Set:
    folder = copied(s.draft, s.work)
    set_keys(folder / "wiring.json", {"taps": ["embed", "layer:1", "layer:3"]})
    return s.but(draft=folder)


def of_other_family(s: Set) -> Set:
    """A target of the same sizes and tokenizer that the draft never saw."""
    return retarget(s, lambda held: held.update({name: seeded_noise(value, 11) for name, value in held.items() if value.dim() > 1}))


add("config-broken", "no config.json", broken_file("config.json", None), depths=FILES)
add("config-broken", "config.json cut short", broken_file("config.json", b'{"hidden_size": 64,'), "qwen3", depths=FILES)
add("config-broken", "a size in words", lambda s: raw_draft(s, {"num_attention_heads": "four"}), depths=FILES)
add("config-broken", "an unknown key", lambda s: raw_draft(s, {"norm_outputs": True}), depths=FILES)
add("weights-broken", "no weights", broken_file("model.safetensors", None), depths=FILES)
add("weights-broken", "weights cut short", cut, "deepseek_v3", depths=FILES)
add("weights-broken", "weights are a web page", broken_file("model.safetensors", b"<html>not found</html>" * 50), depths=FILES)
add("weights-broken", "a shard is missing", missing_shard, "qwen3", depths=FILES)
add("weights-broken", "a pickle with code in it", pickled_code, depths=FILES)
add("keys-differ", "up_proj is missing", lambda s: foreign(s, tensors=drop("layers.0.mlp.up_proj.weight")), depths=FILES)
add("keys-differ", "a second layer's weight", lambda s: foreign(s, tensors=spare_tensor), "qwen3", depths=FILES)
add("keys-differ", "an unknown prefix", lambda s: foreign(s, tensors=renamed("layers.0.", "decoder.blocks.0.")), depths=FILES)
add("keys-differ", "one norm under another name", lambda s: foreign(s, tensors=renamed("hidden_norm", "hidden_ln")), depths=FILES)
add("shape-differs", "another MLP width", lambda s: foreign(s, config=layer(intermediate_size=96)), "llama", "qwen3", depths=FILES)
add("shape-differs", "a norm one short", lambda s: foreign(s, tensors=narrow_norm), depths=FILES)
add("shape-differs", "a larger draft vocabulary", lambda s: foreign(s, config=lambda c: c.update(draft_vocab_size=400)), depths=FILES)
add("files-mixed", "wiring of another draft", other_wiring, "llama", "deepseek_v3", depths=FILES)
add("files-mixed", "a switch edited behind the wiring", lambda s: raw_draft(s, {"norm_before_residual": True}), depths=FILES)
add("other-target", "a target of equal sizes", of_other_family, "llama", "qwen3")
for family in FAMILIES:
    add("weights-untrained", "fc at random", lambda s: redraft(s, at_random("fc.weight")), family)
add("weights-untrained", "o_proj all zero", lambda s: redraft(s, constant("midlayer.self_attn.o_proj.weight", 0.0)), "qwen3")
add("weights-untrained", "down_proj all zero", lambda s: redraft(s, constant("midlayer.mlp.down_proj.weight", 0.0)))


# -- N: number formats -----------------------------------------------------------------------------------------

FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}


def with_scales(held: Tensors) -> None:
    for name in [name for name in held if name.endswith("_proj.weight")]:
        held[name + "_scale_inv"] = torch.ones(1, 1)


def spoilt(name: str, value: float) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        held[name][1, :2] = value

    return change


def as_eight_bits(held: Tensors) -> None:
    for name in [name for name in held if name.endswith("_proj.weight")]:
        held[name] = held[name].float().clamp(-1, 1).mul(127).to(torch.int8)


def quantised_target(s: Set) -> Set:
    """The usual way in: the config of a quantised target is copied into its draft's."""
    made = foreign(s, config=lambda config: config.update(FP8))
    return retarget(made, config=FP8).but(given=("target", "draft"))


def raw_fp32(s: Set) -> Set:
    made = exported(s)
    edit_tensors(
        made.draft / "model.safetensors", lambda held: held.update({n: t.float() for n, t in held.items() if t.is_floating_point()})
    )
    return made


add(
    "quantization-config",
    "fp8 config beside bf16 weights",
    lambda s: foreign(s, config=lambda c: c.update(FP8)),
    "llama",
    "qwen3",
    depths=FILES,
)
add("quantization-config", "copied from the quantised target", quantised_target, depths=FILES)
add("scales-unread", "scales that nothing reads", lambda s: foreign(s, tensors=with_scales), depths=FILES)
add("weights-not-finite", "NaN in fc", lambda s: redraft(s, spoilt("fc.weight", float("nan"))), depths=FILES)
add(
    "weights-not-finite",
    "infinity in down_proj",
    lambda s: foreign(s, tensors=spoilt("layers.0.mlp.down_proj.weight", float("inf"))),
    "qwen3",
    depths=FILES,
)
add("dtype-differs", "fp32 weights where the config says bf16", raw_fp32, depths=FILES)
add("dtype-differs", "eight-bit weights without a word", lambda s: foreign(s, tensors=as_eight_bits), depths=FILES)


@fault("weights-not-finite", "a head that overflows", "deepseek_v3", depths=REPLAY)
def overflowing_head(s: Set) -> Set:
    return redraft(s, spoilt("lm_head.weight", float("nan")))
