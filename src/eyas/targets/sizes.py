"""Sizes that a target's config.json may state. Far beyond any model; a slip or a damaged file is an error before anything is made.

A config class may build a list as long as the model has layers, so what is written is checked before transformers reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.errors import UserError

MOST_LAYERS = 10_000
_WIDEST = 1 << 20
_LARGEST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), MOST_LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), _WIDEST),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "head_dim"), _WIDEST),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), _WIDEST),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "n_shared_experts"), _WIDEST),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "n_inner", "shared_expert_intermediate_size"), 1 << 24),
    "vocab_size": 1 << 26,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 10**9),
}
_NEEDED = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
_OFTEN = "max_position_embeddings"  # not every family limits them


def check_written(written: Mapping[str, Any], target: str) -> None:
    """What config.json says, in its own names. Raises UserError for a size that no model has."""
    inner = written.get("text_config")
    for part in (written, inner if isinstance(inner, Mapping) else {}):
        for name, largest in _LARGEST.items():
            value = part.get(name)
            if isinstance(value, int | float) and value > largest:
                raise UserError(
                    f"the target's config.json states a size that no model has: {target}",
                    got=f"{name} = {_short(value)}",
                    allowed=f"1 to {largest:,}",
                    remedy="copy config.json again from where the weights come from",
                )


def check_sizes(config: Any, target: str) -> None:
    """Whatever the family, these numbers are read before the model is made. Raises UserError if one is missing or impossible."""
    text = config.get_text_config(decoder=True)
    for name in (*_NEEDED, _OFTEN):
        value = getattr(text, name, None)
        if value is None and name == _OFTEN:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST[name]:
            raise UserError(
                f"the target's config.json is not that of a language model that can be used: {target}",
                got=f"{name} = {_short(value)} in a config of type {config.model_type!r}",
                allowed=f"a whole number of at least 1 and at most {_LARGEST[name]:,}",
                remedy="use a decoder-only model, and copy its config.json whole",
            )


def _short(value: Any) -> str:
    """An integer of thousands of digits cannot be printed, nor would anybody read it."""
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else repr(value)[:80]
