"""Faults as other projects leave them in a draft's folder: keys that one reader alone knows, files beside the weights, wrappers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file

from seeded.behaviour import DRAFT_ONLY
from seeded.dumps import NO_DRAFT
from seeded.edits import Rows, Tensors, foreign, redraft, redump
from seeded.registry import FILES, add
from seeded.sets import Set

_QUANTISED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}


def quantisation_beside(s: Set) -> Set:
    """The target's, copied with the rest of its folder."""
    made = foreign(s, "modelopt")
    (made.draft / "hf_quant_config.json").write_text(json.dumps(_QUANTISED))
    return made


def two_drafts(s: Set) -> Set:
    """A pickled file of an earlier training was left beside the safetensors."""
    made = foreign(s, "eagle")
    held = load_file(made.draft / "model.safetensors")
    earlier = {name: t + 0.3 * t.float().std().to(t.dtype) if t.is_floating_point() else t for name, t in held.items()}
    torch.save(earlier, made.draft / "pytorch_model.bin")
    return made


def wrapped(held: Tensors) -> None:
    for name in list(held):
        held[f"module.eagle.{name}"] = held.pop(name)


def steps_of_eight_bits(held: Tensors) -> None:
    held["fc.weight"] = (held["fc.weight"] / (held["fc.weight"].abs().max() / 127)).round()


def rope(**keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        for name in ("rope_parameters", "rope_scaling"):
            config.pop(name, None)
        config.update(keys)

    return change


def ids_for_vllm(config: dict[str, Any]) -> None:
    """Outputs of layers under the key that vLLM alone reads, who takes them for what enters a layer."""
    config["eagle_config"] = {"layer_ids": [0, 1, 2]}


def older_tail(s: Set) -> Set:
    """A buffer that was longer than what arrived: one sample in seven ends on rows of the one before it."""
    before: dict[str, torch.Tensor] = {}

    def change(number: int, rows: Rows) -> None:
        states, count = rows["states"], len(rows["states"]) // 4
        if number % 7 == 3 and "rows" in before:
            states[-count:] = before["rows"][:1].expand(count, -1)
        before["rows"] = states.clone()

    return redump(s, change).but(given=NO_DRAFT)


add("quantization-config", "Model-Optimizer's file of the target beside it", quantisation_beside, "llama", "deepseek_v3", depths=FILES)
add(
    "scales-unread",
    "fc in steps of eight bits, its scale lost",
    lambda s: redraft(s, steps_of_eight_bits),
    "llama",
    "deepseek_v3",
    depths=FILES,
)
add("files-mixed", "another draft in a pickled file beside it", two_drafts, depths=FILES)
add("keys-differ", "a wrapper of two parts before all keys", lambda s: foreign(s, "specforge", tensors=wrapped), "qwen3", depths=FILES)
add(
    "keys-differ", "a bias of fc that is said to be there", lambda s: foreign(s, "modelopt", lambda c: c.update(fc_bias=True)), depths=FILES
)
add("rope-schema", "a factor without a kind", lambda s: foreign(s, "specforge", rope(rope_scaling={"factor": 8.0})), depths=FILES)
add("rope-schema", "half of each head", lambda s: foreign(s, "specforge", rope(partial_rotary_factor=0.5)), "qwen3", depths=FILES)
add("taps-shifted", "ids under vLLM's own key", lambda s: foreign(s, "specforge", ids_for_vllm).but(given=DRAFT_ONLY))
add("dump-other-rows", "some samples end on an older buffer", older_tail, "qwen3")
