"""Bits that a weight takes in a checkpoint, part by part: a quantised one leaves some parts as they were."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from eyas.errors import UserError
from eyas.plan.config import Config
from eyas.plan.shape import Shape

_QUANTISED = ("attention", "key_value", "latent", "dense", "shared", "experts")  # heads, tables and norms stay as they were
_METHODS = "fp8, compressed-tensors, mxfp4, modelopt, awq, gptq, bitsandbytes"


@dataclass(frozen=True)
class Weights:
    """Bits a parameter of each part. `method`: of the quantisation, None if there is none."""

    bits: Mapping[str, float]
    method: str | None = None

    def bytes_of(self, shape: Shape) -> float:
        return sum(getattr(shape.parts, part) * bits / 8 for part, bits in self.bits.items())

    def words(self, shape: Shape) -> str:
        """For people: which of the parts that this model has are stored in how many bits."""
        full = self.bits["small"]
        changed = [part for part in _QUANTISED if self.bits[part] != full and getattr(shape.parts, part)]
        if not changed:
            return "fp32" if full == 32 else "bf16"
        parts = ", ".join(_WORDS[part] for part in changed)
        return f"{self.bits[changed[0]]:g} bits a weight ({self.method}) in {parts}; else {full:g} bits"


_WORDS = {
    "attention": "attention",
    "key_value": "keys and values",
    "latent": "latents",
    "dense": "dense MLPs",
    "shared": "shared experts",
    "experts": "routed experts",
}


def read_weights(config: Config, given_bits: int | None = None) -> Weights:
    """What the config says, or `given_bits` for every matrix of the layers. Raises UserError for an unknown quantisation."""
    full = 32.0 if _dtype(config) == "float32" else 16.0
    plain = dict.fromkeys(("embedding", "head", *_QUANTISED, "small"), full)
    if given_bits is not None:
        return Weights(plain | dict.fromkeys(_QUANTISED, float(given_bits)), "as you said")
    quantised = config.model.get("quantization_config") or config.whole.get("quantization_config")
    if not quantised:
        return Weights(plain)
    if not isinstance(quantised, Mapping):
        raise UserError(f"{config.where}: quantization_config must be an object", got=type(quantised).__name__)
    bits, skipped, method = _bits(quantised, config), _skipped(quantised), str(quantised.get("quant_method"))
    possible = ("experts",) if method == "mxfp4" else _QUANTISED
    changed = [part for part in possible if not any(_matches(pattern, _module(part, config)) for pattern in skipped)]
    return Weights(plain | dict.fromkeys(changed, bits), method)


def _dtype(config: Config) -> str:
    for part in (config.model, config.whole):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key]).removeprefix("torch.")
    return "bfloat16"


def _bits(quantised: Mapping[str, Any], config: Config) -> float:
    """Bits of a weight with its share of the scales (and zero points)."""
    method = quantised.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return 8.0
    if method == "mxfp4":
        return 4 + 8 / 32
    if method in ("awq", "gptq") and isinstance(quantised.get("bits"), int) and 1 <= quantised["bits"] <= 16:
        group = quantised.get("group_size", 128)
        return quantised["bits"] + (16 + quantised["bits"]) / group if isinstance(group, int) and group > 0 else quantised["bits"]
    if method == "bitsandbytes":
        return 4.5 if quantised.get("load_in_4bit") else 8.0
    if method == "modelopt" and quantised.get("quant_algo") in ("FP8", "NVFP4"):
        return 8.0 if quantised["quant_algo"] == "FP8" else 4.5
    if method == "compressed-tensors":
        found = _compressed(quantised)
        if found is not None:
            return found
    raise UserError(
        f"{config.where}: this quantisation is not known",
        got=f"quant_method {method!r}",
        allowed=_METHODS,
        remedy="say how many bits a weight of the layers takes: --weight-bits 4",
    )


def _compressed(quantised: Mapping[str, Any]) -> float | None:
    groups = quantised.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return None
    first = next(iter(groups.values()))
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(weights.get("num_bits"), int) or not 1 <= weights["num_bits"] <= 16:
        return None
    bits, group = weights["num_bits"], weights.get("group_size")
    scale = 8 if weights.get("type") == "float" and bits == 4 else 16
    return bits + scale / group if isinstance(group, int) and group > 0 else float(bits)


def _skipped(quantised: Mapping[str, Any]) -> list[str]:
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules"):
        if isinstance(quantised.get(key), list):
            return [item for item in quantised[key] if isinstance(item, str)]
    return []


def _module(part: str, config: Config) -> str:
    """A module of that part, in the last layer (some checkpoints leave the first ones as they were), by its usual name."""
    last = config.positive("num_hidden_layers", "n_layer") - 1
    mla = bool(config.model.get("kv_lora_rank"))
    names = {
        "attention": f"layers.{last}.self_attn.o_proj",
        "key_value": f"layers.{last}.self_attn.k_proj",
        "latent": f"layers.{last}.self_attn.{'kv_a_proj_with_mqa' if mla else 'q_proj'}",
        "dense": f"layers.{0 if config.number('first_k_dense_replace', default=0) else last}.mlp.gate_proj",
        "shared": f"layers.{last}.mlp.shared_experts.gate_proj",
        "experts": f"layers.{last}.mlp.experts.0.gate_proj",
    }
    return f"model.{names[part]}"


def _matches(pattern: str, module: str) -> bool:
    """compressed-tensors writes `re:` before a regular expression; others give names, their beginnings, or globs."""
    for name in (module, f"language_model.{module}"):
        if pattern.startswith("re:"):
            if _regex(pattern[3:]).match(name):
                return True
        elif name == pattern or name.startswith(f"{pattern}.") or f".{pattern}." in f".{name}." or fnmatchcase(name, pattern):
            return True
    return False


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError("the quantisation leaves out what no regular expression says", got=f"re:{text}: {error}") from error
