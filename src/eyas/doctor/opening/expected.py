"""The tensors that a draft of a stated config has, with their shapes, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.doctor.opening.draft import DraftFiles
from eyas.doctor.opening.plain import inside, whole

_MLA = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def expected_shapes(files: DraftFiles) -> dict[str, tuple[int, ...]] | None:
    """By Eyas's names; None if the config does not state the sizes. What is optional is left out (embedding, maps, head)."""
    stated = files.stated
    hidden, inner = whole(stated.get("hidden_size")), whole(stated.get("intermediate_size"))
    heads = whole(stated.get("num_attention_heads"))
    if hidden is None or inner is None or heads is None:
        return None
    width = whole(stated.get("target_hidden_size")) or hidden
    slots = whole(stated.get("num_taps")) or files.num_slots or 3
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, slots * width), "norm.weight": (hidden,)}
    shapes |= {f"midlayer.{name}.weight": (hidden,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    shapes |= {f"midlayer.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    shapes["midlayer.mlp.down_proj.weight"] = (hidden, inner)
    shapes |= _attention(files, hidden, heads)
    if stated.get("norm_before_fc") is True:
        shapes["input_norm.weight"] = (slots * width,)
    if stated.get("fc_norm") is True:
        shapes |= {f"fc_norm.{slot}.weight": (width,) for slot in range(slots)}
    return shapes


def mla_sizes(files: DraftFiles) -> Mapping[str, Any] | None:
    """The sizes of an MLA head; None for one with plain heads."""
    mla = files.stated.get("mla")
    if isinstance(mla, Mapping):
        return mla
    layer = files.layer
    return layer if whole(layer.get("kv_lora_rank")) and files.has("midlayer.self_attn.kv_a_proj_with_mqa.weight") else None


def _attention(files: DraftFiles, hidden: int, heads: int) -> dict[str, tuple[int, ...]]:
    layer = "midlayer.self_attn."
    mla = mla_sizes(files)
    if mla is not None:
        rank, nope, rope, value = (whole(mla.get(name)) or 0 for name in _MLA)
        query = whole(mla.get("q_lora_rank"))
        found = {
            layer + "kv_a_proj_with_mqa.weight": (rank + rope, 2 * hidden),
            layer + "kv_a_layernorm.weight": (rank,),
            layer + "kv_b_proj.weight": (heads * (nope + value), rank),
            layer + "o_proj.weight": (hidden, heads * value),
        }
        if query is None:
            return found | {layer + "q_proj.weight": (heads * (nope + rope), 2 * hidden)}
        return found | {
            layer + "q_a_proj.weight": (query, 2 * hidden),
            layer + "q_a_layernorm.weight": (query,),
            layer + "q_b_proj.weight": (heads * (nope + rope), query),
        }
    size = whole(files.stated.get("head_dim")) or hidden // heads
    groups = whole(files.stated.get("num_key_value_heads")) or heads
    return {
        layer + "q_proj.weight": (heads * size, 2 * hidden),
        layer + "k_proj.weight": (groups * size, 2 * hidden),
        layer + "v_proj.weight": (groups * size, 2 * hidden),
        layer + "o_proj.weight": (hidden, heads * size),
    }


def vocabulary(files: DraftFiles) -> tuple[int | None, int | None]:
    """(tokens that the draft knows, the target's), as the config states them, else as the weights show them."""
    head, embedding, t2d, d2t = (files.weights_shape(name) for name in ("lm_head.weight", "embed_tokens.weight", "t2d", "d2t"))
    whole_ones = whole(files.stated.get("vocab_size")) or (t2d[0] if t2d else None) or (embedding[0] if embedding else None)
    own = whole(files.stated.get("draft_vocab_size")) or (head[0] if head else None) or (d2t[0] if d2t else None) or whole_ones
    return own, whole_ones


def sidecar_config(files: DraftFiles) -> Mapping[str, Any]:
    """The draft's config as the file beside a foreign checkpoint has it."""
    found = inside(files.sidecar.value, "config")
    return found if isinstance(found, Mapping) else {}
