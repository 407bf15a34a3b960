"""The shape of a draft, and how it is derived from a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from eyas.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class DraftConfig:
    """Sizes and switches of an EAGLE-3 head with one Llama-style layer.

    `norm_before_fc`: one RMSNorm over the concatenated taps. `fc_norm`: one RMSNorm a tap. `norm_before_residual`: the
    residual is the normed hidden state. `norm_output`: the state fed back into the next step is the normed one.
    """

    hidden_size: int
    target_hidden_size: int
    num_taps: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False

    @staticmethod
    def from_target(text_config: Any, *, num_taps: int, draft_vocab_size: int, **switches: Any) -> DraftConfig:
        """A draft as wide as the target, with the target's heads and RoPE.

        A target with MLA or partial RoPE has no plain heads to copy; its draft gets heads of 64 (or fewer) and the
        target's theta.
        """
        hidden = int(text_config.hidden_size)
        head_dim = int(getattr(text_config, "head_dim", None) or hidden // text_config.num_attention_heads)
        heads, kv_heads = (
            int(text_config.num_attention_heads),
            int(getattr(text_config, "num_key_value_heads", None) or text_config.num_attention_heads),
        )
        rope = dict(_rope_parameters(text_config))
        if getattr(text_config, "kv_lora_rank", None) is not None or rope.get("partial_rotary_factor", 1.0) != 1.0:
            head_dim = min(64, hidden)
            heads = kv_heads = hidden // head_dim
            rope = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        return DraftConfig(
            hidden_size=hidden,
            target_hidden_size=hidden,
            num_taps=num_taps,
            intermediate_size=int(getattr(text_config, "intermediate_size", None) or 4 * hidden),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=int(text_config.vocab_size),
            draft_vocab_size=draft_vocab_size,
            rope_parameters=rope,
            max_position_embeddings=int(text_config.max_position_embeddings),
            rms_norm_eps=float(getattr(text_config, "rms_norm_eps", 1e-5)),
            **switches,
        )

    def layer_config(self) -> LlamaConfig:
        """The config of transformers' Llama parts that the layer is built from."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope_parameters),
            max_position_embeddings=self.max_position_embeddings,
            vocab_size=self.vocab_size,
        )

    def to_json(self) -> dict[str, Any]:
        return {"eyas_draft_format": FORMAT, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(value: Mapping[str, Any], where: str) -> DraftConfig:
        """Raises UserError for another format and for unknown, missing or ill-typed keys."""
        if value.get("eyas_draft_format") != FORMAT:
            raise UserError(f"{where} is not an Eyas draft", got=f"eyas_draft_format = {value.get('eyas_draft_format')}", allowed=FORMAT)
        fields = {item.name: item for item in dataclasses.fields(DraftConfig)}
        unknown = sorted(set(value) - set(fields) - {"eyas_draft_format"})
        missing = sorted(set(fields) - set(value))
        if unknown or missing:
            raise UserError(f"{where}: unknown or missing keys", got=f"unknown {unknown}, missing {missing}", allowed=sorted(fields))
        kinds: dict[str, type | tuple[type, ...]] = {"int": int, "bool": bool, "float": (int, float), "str": str}
        for name, item in fields.items():
            kind = kinds.get(str(item.type), dict)
            number_from_bool = kind is not bool and isinstance(value[name], bool)
            if not isinstance(value[name], kind) or number_from_bool or (item.type == "int" and value[name] < 1):
                raise UserError(f"{where}: {name} has the wrong type or value", got=repr(value[name]), allowed=str(item.type))
        return DraftConfig(**{name: value[name] for name in fields})


def _rope_parameters(text_config: Any) -> Mapping[str, Any]:
    """RoPE of the target's full-attention layers; no default for theta, since a guessed one is silently wrong."""
    rope = getattr(text_config, "rope_parameters", None)
    if isinstance(rope, Mapping) and "full_attention" in rope:  # models with two kinds of layers keep one set a kind
        rope = rope["full_attention"]
    if not isinstance(rope, Mapping) or rope.get("rope_theta") is None:
        raise UserError(
            "the target's config names no rope_theta", got=rope, remedy="add rope_parameters with rope_theta to its config.json"
        )
    return rope
