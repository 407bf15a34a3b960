"""Faults of kinds A to E in the draft: what it is fed and how its layer is run, other than in its training."""

from __future__ import annotations

from typing import Any

import torch

from eyas.draft.checkpoint import read_draft
from eyas.draft.permute import permute_taps
from seeded.dumps import holding
from seeded.edits import Choice, Tensors, earlier, exported, foreign, further, in_int4, in_reverse, names_of, redraft
from seeded.registry import FILES, REPLAY, add, fault
from seeded.sets import FAMILIES, THETA, Set

HALF_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
DRAFT_ONLY = ("target", "draft", "data")  # a dump with other taps would say the same at once
IDS = "eagle_aux_hidden_state_layer_ids"


def declared(choice: Choice) -> Any:
    """The draft says that it reads these states."""
    return lambda s: redraft(s, wiring={"taps": names_of(s, choice)}).but(given=DRAFT_ONLY)


def ids(form: str, value: list[int] | None) -> Any:
    """A bare export whose config has these layer ids, or none."""

    def change(config: dict[str, Any]) -> None:
        config.pop(IDS, None)
        config.pop("eagle_config", None)
        if value is not None:
            config.update({IDS: value} if form == "speculators" else {"eagle_config": {IDS: value, "use_aux_hidden_state": True}})

    return lambda s: foreign(s, form, change).but(given=DRAFT_ONLY)


def layer(without: tuple[str, ...] = (), **changes: Any) -> Any:
    """Keys of the decoder layer in speculators' config."""

    def change(config: dict[str, Any]) -> None:
        inner = config["transformer_layer_config"]
        inner.update(changes)
        for name in without:
            inner.pop(name, None)

    return change


def no_theta(config: dict[str, Any]) -> None:
    layer(without=("rope_theta", "rope_parameters", "rope_scaling"))(config)


# -- A: which states -------------------------------------------------------------------------------------------

add("taps-shifted", "declared one layer further", declared(further), *FAMILIES)
add("taps-shifted", "declared one layer earlier", declared(earlier), *FAMILIES)
add("taps-other", "last slot from the embedding", declared(lambda taps, layers: [*taps[:-1], 0]))
add("taps-other", "first slot from the last layer", declared(lambda taps, layers: [layers, *taps[1:]]), "deepseek_v3")
add("taps-other", "embedding in the middle", declared(lambda taps, layers: [taps[0], 0, *taps[2:]]))
add("taps-shifted", "ids of boundaries where outputs are meant", ids("specforge", [1, 2, 3]))
add("taps-shifted", "ids of outputs where boundaries are meant", ids("speculators", [0, 1, 2]), "qwen3")
add("taps-shifted", "middle layer one off", ids("specforge", [0, 2, 3]))
add("taps-shifted", "the dump's states are a layer later, the target in int4", lambda s: in_int4(holding(further)(s)), "qwen3")
add("taps-undeclared", "config without ids", ids("specforge", None), depths=FILES)
add("taps-undeclared", "config without ids, replayed", ids("specforge", None))
add("taps-impossible", "one id twice, replayed", ids("speculators", [1, 2, 2]), "qwen3")
add("taps-undeclared", "speculators config without ids", ids("speculators", None), "qwen3", depths=FILES)
add("taps-impossible", "id beyond the last layer", ids("specforge", [0, 1, 9]), depths=FILES)
add("taps-impossible", "negative id", ids("speculators", [-1, 2, 3]), "deepseek_v3", depths=FILES)
add("taps-impossible", "one id twice", ids("specforge", [0, 1, 1]), depths=FILES)
add("taps-impossible", "two ids for three slots", ids("specforge", [0, 1]), depths=FILES)
add("taps-impossible", "four ids for three slots", ids("speculators", [1, 2, 3, 4]), "qwen3", depths=FILES)


@fault("taps-engine", "ids at the top level, where old SGLang does not look", "deepseek_v3", depths=FILES)
def top_level_ids(s: Set) -> Set:
    def change(config: dict[str, Any]) -> None:
        config[IDS] = config.pop("eagle_config", {}).get(IDS, [0, 1, 2])

    return foreign(s, "specforge", change).but(engine="sglang==0.5.10", given=("target", "draft"))


@fault("taps-engine", "ids of outputs, served by vLLM", depths=FILES)
def output_ids_in_vllm(s: Set) -> Set:
    return exported(s, "specforge", bare=False).but(engine="vllm==0.33.0", given=("target", "draft"))


@fault("taps-engine", "ids of outputs, served by vLLM: measured", "llama", "qwen3")
def output_ids_measured(s: Set) -> Set:
    return exported(s, "specforge").but(engine="vllm==0.33.0", given=DRAFT_ONLY)


@fault("taps-engine", "ids that mean outputs until SGLang 0.5.13 and boundaries since", "deepseek_v3", depths=FILES)
def sglang_changed(s: Set) -> Set:
    return exported(s, "specforge").but(engine="sglang==0.5.20", given=("target", "draft"))


@fault("taps-engine", "slots out of order, which engines sort", depths=FILES)
def unsorted_slots(s: Set) -> Set:
    """The draft is right: weights and taps were permuted together."""
    order = (2, 0, 1)
    moved = permute_taps(read_draft(s.draft).draft, order).state_dict()

    def take(held: Tensors) -> None:
        held.update({name: tensor.clone() for name, tensor in moved.items()})

    taps = names_of(s, lambda taps, layers: [taps[old] for old in order])
    made = redraft(s, take, wiring={"taps": taps})
    return exported(made, "specforge", bare=False).but(engine="vllm==0.33.0", given=("target", "draft"))


# -- B: norms --------------------------------------------------------------------------------------------------

add("norm-placement", "residual taken behind the norm", lambda s: redraft(s, config={"norm_before_residual": True}), "llama", "deepseek_v3")
add("norm-placement", "residual taken before the norm", lambda s: redraft(s, config={"norm_before_residual": False}), "qwen3")
# qwen3's head norms what is fed back in any case (norm_before_residual), so another norm there changes next to nothing.
add("norm-feedback", "normed state fed back", lambda s: redraft(s, config={"norm_output": True}), "llama")
add("norm-feedback", "state fed back without its norm", lambda s: redraft(s, config={"norm_output": False}), "deepseek_v3")
add(
    "norm-placement",
    "switch lost in a foreign config",
    lambda s: foreign(s, config=lambda c: c.update(norm_before_residual=False)),
    "qwen3",
)
add("norm-feedback", "norm_output lost on export", lambda s: foreign(s, config=lambda c: c.update(norm_output=False)), "deepseek_v3")
add("norm-flags", "norm_before_fc without its weights", lambda s: foreign(s, config=lambda c: c.update(norm_before_fc=True)), depths=FILES)
add("norm-flags", "fc_norm without its weights", lambda s: foreign(s, config=lambda c: c.update(fc_norm=True)), "qwen3", depths=FILES)


@fault("norm-flags", "norm weights whose switch is off", depths=FILES)
def norm_without_switch(s: Set) -> Set:
    def more(held: Tensors) -> None:
        held["input_norm.weight"] = torch.ones(held["fc.weight"].shape[1], dtype=held["fc.weight"].dtype)

    return foreign(s, tensors=more)


def centred(*names: str) -> Any:
    def change(held: Tensors) -> None:
        for name in held:
            if name.endswith("norm.weight") and (not names or any(part in name for part in names)):
                held[name] -= 1.0

    return lambda s: redraft(s, change)


add("norm-convention", "all norm weights less 1", centred(), *FAMILIES)
add("norm-convention", "final norm less 1", centred("norm.weight"), "qwen3")
add(
    "norm-engine", "norm_output under an engine that does not know it", lambda s: s.but(engine="sglang==0.5.9"), "deepseek_v3", depths=FILES
)
add("norm-engine", "norm_before_residual under SGLang", lambda s: s.but(engine="sglang==0.5.23"), "qwen3", depths=FILES)


# -- C: order and architecture ---------------------------------------------------------------------------------


def permuted(*order: int) -> Any:
    def change(held: Tensors) -> None:
        held["fc.weight"] = torch.cat([held["fc.weight"].chunk(3, dim=1)[slot] for slot in order], dim=1)

    return lambda s: redraft(s, change)


def swap_halves(held: Tensors) -> None:
    for name in held:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            left, right = held[name].chunk(2, dim=1)
            held[name] = torch.cat([right, left], dim=1)


def shards_exchanged(name: str, axis: int) -> Any:
    """What two ranks held of a matrix, joined in the wrong order."""

    def change(held: Tensors) -> None:
        left, right = held[f"midlayer.{name}.weight"].chunk(2, dim=axis)
        held[f"midlayer.{name}.weight"] = torch.cat([right, left], dim=axis)

    return lambda s: redraft(s, change)


add("half-order", "[hidden | embedding] where [embedding | hidden] belongs", lambda s: redraft(s, swap_halves), *FAMILIES)
add("slot-order", "columns of fc reversed", permuted(2, 1, 0), *FAMILIES)
add("slot-order", "columns of fc turned", permuted(1, 2, 0), "qwen3")
add("slot-order", "two slots swapped", permuted(1, 0, 2), "deepseek_v3")
add("slot-order", "taps named in reverse", declared(in_reverse))
add("head-shape", "half as many heads, twice as wide", lambda s: redraft(s, config=HALF_HEADS))
add("head-shape", "more heads than the weights have", lambda s: foreign(s, config=layer(num_attention_heads=8)), depths=FILES)
add("head-shape", "key heads as many as query heads", lambda s: foreign(s, config=layer(num_key_value_heads=4)), "qwen3", depths=FILES)
add("architecture", "another activation", lambda s: redraft(s, config={"hidden_act": "relu"}))
add("architecture", "norms with another epsilon", lambda s: redraft(s, config={"rms_norm_eps": 3.0}), "qwen3")
add("architecture", "down_proj's shards in the wrong order", shards_exchanged("mlp.down_proj", 1), "qwen3")
add("architecture", "o_proj's shards in the wrong order", shards_exchanged("self_attn.o_proj", 1))
add("architecture", "two layers in the config", lambda s: foreign(s, config=layer(num_hidden_layers=2)), depths=FILES)


# -- E: RoPE ---------------------------------------------------------------------------------------------------


def theta(value: float) -> Any:
    return lambda s: redraft(s, config={"rope_parameters": {"rope_type": "default", "rope_theta": value}})


def scaled(**scaling: Any) -> Any:
    return lambda s: redraft(s, config={"rope_parameters": {"rope_theta": THETA, **scaling}})


# On texts as short as these, deepseek_v3's draft is right as often with another theta: nothing is broken that could be seen.
add("rope-theta", "theta left at 10000", theta(10000.0), "llama", "qwen3")
add("rope-theta", "theta a hundred times smaller", theta(100.0), "qwen3")
add("rope-theta", "no theta in either schema", lambda s: foreign(s, config=no_theta), *FAMILIES[:2])
add("rope-scaling", "linear scaling by 4", scaled(rope_type="linear", factor=4.0), "llama")
add("rope-scaling", "yarn by 8", scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=64), "qwen3")
add("rope-schema", "the two schemas name two thetas", lambda s: foreign(s, config=layer(rope_theta=10000.0)), depths=FILES)
add("rope-schema", "theta in the new schema only", lambda s: foreign(s, config=layer(without=("rope_theta",))), depths=FILES)
add(
    "rope-schema",
    "llama3 scaling without its factors",
    lambda s: foreign(s, config=layer(rope_scaling={"rope_type": "llama3"})),
    depths=FILES,
)
add(
    "rope-schema",
    "a kind of RoPE that there is not",
    lambda s: foreign(s, config=layer(rope_scaling={"type": "yarm", "factor": 2})),
    depths=FILES,
)
add("rope-range", "positions end at 16", lambda s: redraft(s, config={"max_position_embeddings": 16}), "llama", "qwen3", depths=REPLAY)
