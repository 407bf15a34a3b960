"""Faults of kinds H and N: files, keys, shapes and number formats of a draft's folder, and what was never trained."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import torch
from safetensors.torch import load_file

from seeded.behaviour import layer
from seeded.contents import drop
from seeded.edits import (
    Tensors,
    copied,
    edit_tensors,
    exported,
    foreign,
    raw_draft,
    redraft,
    replace_bytes,
    retarget,
    seeded_noise,
    set_keys,
)
from seeded.registry import FILES, REPLAY, add, fault
from seeded.sets import FAMILIES, Set

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


def in_few_steps(held: Tensors) -> None:
    """A handful of numbers are left, as of a cast to whole numbers and back."""
    step = held["fc.weight"].abs().max() / 1.5
    held["fc.weight"] = (held["fc.weight"] / step).round() * step


def at_random(name: str, spread: float = 0.02) -> Callable[[Tensors], None]:
    def change(held: Tensors) -> None:
        held[name] = torch.randn(held[name].shape, generator=torch.Generator().manual_seed(4)).to(held[name].dtype) * spread

    return change


def other_wiring(s: Set) -> Set:
    folder = copied(s.draft, s.work)
    set_keys(folder / "wiring.json", {"taps": ["embed", "layer:1", "layer:3"]})
    return s.but(draft=folder)


def of_other_family(s: Set) -> Set:
    """A target of the same sizes and tokenizer that the draft never saw."""
    return retarget(s, lambda held: held.update({name: seeded_noise(value, 11) for name, value in held.items() if value.dim() > 1}))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


def gate_twice(held: Tensors) -> None:
    held["layers.0.mlp.up_proj.weight"] = held["layers.0.mlp.gate_proj.weight"].clone()


def columns_twice(held: Tensors) -> None:
    first, _, third = held["fc.weight"].chunk(3, dim=1)
    held["fc.weight"] = torch.cat([first, first, third], dim=1)


def of_target(s: Set) -> Set:
    theirs = load_file(s.target / "model.safetensors")["model.layers.2.self_attn.o_proj.weight"]
    name = "midlayer.self_attn.o_proj.weight"
    return redraft(s, lambda held: held.update({name: theirs.to(held[name].dtype)})).but(given=("target", "draft", "data"))


def fused(held: Tensors) -> None:
    attention = "layers.0.self_attn."
    held[f"{attention}qkv_proj.weight"] = torch.cat([held.pop(f"{attention}{name}_proj.weight") for name in "qkv"])


add("config-broken", "no config.json", broken_file("config.json", None), depths=FILES)
add("config-broken", "config.json cut short", broken_file("config.json", b'{"hidden_size": 64,'), "qwen3", depths=FILES)
add("config-broken", "a size in words", lambda s: raw_draft(s, {"num_attention_heads": "four"}), depths=FILES)
add("config-broken", "an unknown key", lambda s: raw_draft(s, {"norm_outputs": True}), depths=FILES)
add("weights-broken", "no weights", broken_file("model.safetensors", None), depths=FILES)
add("weights-broken", "weights cut short", cut, "deepseek_v3", depths=FILES)
add("weights-broken", "weights are a web page", broken_file("model.safetensors", b"<html>not found</html>" * 50), depths=FILES)
add("weights-broken", "a shard is missing", missing_shard, "qwen3", depths=FILES)
add("weights-broken", "a pickle with code in it", pickled_code, depths=FILES)
add("weights-broken", "the target's config asks for biases that its weights lack", lambda s: retarget(s, config={"attention_bias": True}))
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
add("weights-untrained", "fc at random", lambda s: redraft(s, at_random("fc.weight")), *FAMILIES)
add("weights-untrained", "fc in a handful of numbers", lambda s: redraft(s, in_few_steps), depths=FILES)
for part in ("self_attn.o_proj", "mlp.up_proj"):
    add("weights-untrained", f"{part} at random", lambda s, part=part: redraft(s, at_random(f"midlayer.{part}.weight", 0.1)))
add("keys-differ", "biases that are said to be there", lambda s: foreign(s, config=layer(attention_bias=True)), depths=FILES)
add("weights-untrained", "gate_proj under both names", lambda s: foreign(s, tensors=gate_twice), "llama", "qwen3", depths=FILES)
add("weights-untrained", "one slot's columns of fc in two slots", lambda s: redraft(s, columns_twice), "deepseek_v3", depths=FILES)
add("weights-untrained", "o_proj of a layer of the target", of_target, "llama")
add("weights-broken", "a pointer where the weights belong", broken_file("model.safetensors", POINTER), "qwen3", depths=FILES)
add("keys-differ", "q, k and v in one tensor", lambda s: foreign(s, tensors=fused), depths=FILES)
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
