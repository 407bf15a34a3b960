"""A draft's folder, of Eyas or of another project, as far as configs and headers tell: what they state, in Eyas's own names.

Names of tensors are brought to Eyas's whatever prefix their writer used, so that every check reads one set of names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from eyas.doctor.opening.headers import TensorInfo, Weights, read_weights
from eyas.doctor.opening.plain import Object, inside, read_object, whole
from eyas.errors import UserError

SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
IDS = "eagle_aux_hidden_state_layer_ids"
_PREFIX = re.compile(r"^(?:draft_model\.)?(?:model\.)?(layers\.0\.|midlayer\.)?(.+)$")
_LAYERS = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_DROPPED = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|mask_hidden)$|^verifier_(norm|lm_head)\.weight$")
_LAYER = {f"self_attn.{part}_proj.{end}" for part in ("q", "k", "v", "o") for end in ("weight", "bias")}
_LAYER |= {f"mlp.{part}_proj.{end}" for part in ("gate", "up", "down") for end in ("weight", "bias")}
_LAYER |= {f"self_attn.{part}.weight" for part in ("q_norm", "k_norm", "q_a_proj", "q_b_proj", "q_a_layernorm")}
_LAYER |= {f"self_attn.{part}.weight" for part in ("kv_a_proj_with_mqa", "kv_b_proj", "kv_a_layernorm")}
_LAYER |= {f"{part}.weight" for part in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
_TOP = {"fc.weight", "fc.bias", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", "input_norm.weight"}
_COPIED: tuple[str, ...] = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "vocab_size",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
)
# What a layer id means to the project that wrote it: the state that enters a layer, or the one that leaves it.
_ENTERS = ("speculators",)
_VLLM_ALONE = "eagle_config.layer_ids"  # a key of vLLM's own, who takes ids for states that enter a layer
_FC_BIAS = ("fc_bias", "eagle_fc_bias")


@dataclass(frozen=True)
class DraftFiles:
    """`tensors` has Eyas's names, `keys` those of the file by the same name; `spare` are keys that nothing reads.

    wrapper: what a trainer's own module put before all keys, or before all but the head's; empty if nothing.
    """

    folder: Path
    config: Object
    wiring: Object
    sidecar: Object
    weights: Weights
    tensors: Mapping[str, TensorInfo]
    keys: Mapping[str, str]
    spare: tuple[str, ...]
    wrapper: str = ""

    @property
    def is_eyas(self) -> bool:
        return self.wiring.there or "eyas_draft_format" in self.config.value

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of the config that describes the decoder layer."""
        inner = self.config.value.get("transformer_layer_config")
        return inner if isinstance(inner, Mapping) else self.config.value

    @cached_property
    def dialect(self) -> str:
        """The project that wrote it, as far as config and keys tell."""
        config, names = self.config.value, set(map(str, _list(self.config.value.get("architectures"))))
        told = self.sidecar.value.get("format")
        if self.is_eyas:
            return "eyas"
        if isinstance(told, str):
            return told
        if "speculators_config" in config or "speculators_model_type" in config or "Eagle3Speculator" in names:
            return "speculators"
        if "_torchspec_version" in config or "torchspec_version" in self.weights.metadata:
            return "torchspec"
        bare = [key.removeprefix(self.wrapper) for key in self.keys.values()]
        if any(key.startswith("model.layers.") for key in bare):
            return "automodel"
        if any(key.startswith("layers.0.") for key in bare):
            return "modelopt"
        if "Eagle3LlamaForCausalLM" in names:
            return "angelslim"
        return "specforge" if "LlamaForCausalLMEagle3" in names else "eagle"

    @cached_property
    def said(self) -> Mapping[str, Any]:
        """The wiring that comes along: Eyas's own, or the one beside a foreign checkpoint; empty if none does."""
        inner = self.sidecar.value.get("wiring")
        return self.wiring.value or (inner if isinstance(inner, Mapping) else {})

    @cached_property
    def stated(self) -> dict[str, Any]:
        """What config.json says, under the names of Eyas's draft config; unreadable values are left out."""
        top, layer = self.config.value, self.layer
        if "eyas_draft_format" in top:
            return {key: value for key, value in top.items() if key != "eyas_draft_format"}
        found = {key: layer[key] for key in _COPIED if layer.get(key) is not None}
        found |= {key: top[key] for key in ("target_hidden_size", "draft_vocab_size", *SWITCHES) if top.get(key) is not None}
        if "draft_vocab_size" not in found and layer.get("draft_vocab_size") is not None:
            found["draft_vocab_size"] = layer["draft_vocab_size"]
        bias = [top[key] for key in _FC_BIAS if top.get(key) is not None]
        return found | ({"fc_bias": bias[0]} if bias else {})

    @cached_property
    def ids(self) -> list[tuple[str, list[Any]]]:
        """Every list of layer ids in the config, with the key that it stands under."""
        config = self.config.value
        places = {
            f"eagle_config.{IDS}": inside(config, "eagle_config", IDS),
            IDS: config.get(IDS),
            "aux_hidden_states_layer_ids": config.get("aux_hidden_states_layer_ids"),
            _VLLM_ALONE: inside(config, "eagle_config", "layer_ids"),
        }
        return [(key, value) for key, value in places.items() if isinstance(value, list) and value]

    @property
    def ids_enter(self) -> bool:
        """Whether id i means the state that enters layer i, and not the one that leaves it."""
        kimi = self.dialect == "torchspec" and self.config.value.get("model_type") == "kimi_k2"
        return self.dialect in _ENTERS or (kimi and any(key.startswith("layers.0.") for key in self.keys.values()))

    @property
    def for_engine(self) -> bool:
        """Its ids were written for one engine, and mean what they mean there."""
        return bool(_list(self.sidecar.value.get("engine_keys")))

    @cached_property
    def boundaries(self) -> list[int | None] | None:
        """What the draft is said to read, as boundaries (None: the state after the final norm); None if nothing says it."""
        taps = self.said.get("taps")
        if isinstance(taps, list) and taps:
            found = [_boundary(str(tap)) for tap in taps]
            return None if -1 in found else found
        return self.config_boundaries

    @property
    def config_boundaries(self) -> list[int | None] | None:
        """The same by the layer ids of config.json; they may lie out of range."""
        if not self.ids or self.for_engine:
            return None
        key, ids = self.ids[0]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
            return None
        enter = self.ids_enter or key == _VLLM_ALONE
        return [one if enter else one + 1 for one in ids]

    @property
    def num_slots(self) -> int | None:
        """Of how many states fc's columns are, by the width of a state that the config (or fc itself) gives."""
        fc = self.weights_shape("fc.weight")
        width = whole(self.stated.get("target_hidden_size")) or whole(self.stated.get("hidden_size"))
        if fc is None or len(fc) != 2 or width is None or fc[1] % width:
            return whole(self.stated.get("num_taps"))
        return fc[1] // width

    def weights_shape(self, name: str) -> tuple[int, ...] | None:
        info = self.tensors.get(name)
        return None if info is None else info.shape

    def has(self, name: str) -> bool:
        return name in self.tensors


def refuse_target(draft: DraftFiles) -> None:
    """Raises UserError for a whole model. Every EAGLE-3 draft has an fc; a model with many layers and none is what drafts are made for."""
    layers = {found[1] for key in draft.weights.tensors if (found := _LAYERS.search(key)) is not None}
    if len(layers) > 1 and not any(name.startswith("fc.") for name in draft.tensors):
        raise UserError(
            f"--draft is a target, not a draft: {draft.folder}",
            got=f"{len(layers)} layers, and no fc that reads states",
            allowed="the folder of an EAGLE-3 draft",
            remedy="give the draft's folder; its target is named by --target",
        )


def open_draft(folder: Path) -> DraftFiles:
    weights = read_weights(folder)
    wrapper = _wrapper(weights.tensors)
    tensors, keys, spare = _renamed(weights, wrapper)
    sidecar, wiring = read_object(folder / "eyas_wiring.json"), read_object(folder / "wiring.json")
    return DraftFiles(folder, read_object(folder / "config.json"), wiring, sidecar, weights, tensors, keys, spare, wrapper)


def eyas_name(key: str) -> str | None:
    """Eyas's name for a key of any project; None for one that no EAGLE-3 head has."""
    match = _PREFIX.match(key)
    prefix, rest = (match[1], match[2]) if match else (None, key)
    if prefix is not None:
        return f"midlayer.{rest}" if rest in _LAYER else None
    return rest if rest in _TOP or re.fullmatch(r"fc_norm\.\d+\.weight", rest) else None


def _wrapper(keys: Collection[str]) -> str:
    """Of what all keys begin with, as much as makes names of a head's tensors of those that were none."""
    carry = [key for key in keys if key not in _TOP]
    start = list(takewhile(lambda parts: len(set(parts)) == 1, zip(*(key.split(".") for key in carry), strict=False)))
    prefixes = [".".join(parts[0] for parts in start[: place + 1]) + "." for place in range(len(start))]
    known = {prefix: sum(eyas_name(key.removeprefix(prefix)) is not None for key in carry) for prefix in ("", *prefixes)}
    return max(known, key=lambda prefix: known[prefix])


def _renamed(weights: Weights, wrapper: str) -> tuple[dict[str, TensorInfo], dict[str, str], tuple[str, ...]]:
    tensors, keys, spare = {}, {}, []
    for key, info in weights.tensors.items():
        name = eyas_name(key.removeprefix(wrapper))
        if name is not None and name not in tensors:
            tensors[name], keys[name] = info, key
        elif _DROPPED.match(key) is None:
            spare.append(key)
    return tensors, keys, tuple(spare)


def _boundary(tap: str) -> int | None:
    """-1 for a name that is no tap."""
    if tap == "final":
        return None
    match = re.fullmatch(r"(layer|boundary):(\d{1,5})", tap)
    if match is None:
        return 0 if tap == "embed" else -1
    return int(match[2]) + (match[1] == "layer")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
