"""Which weights tensor parallelism splits, and how: transformers' own styles, with the rows that its plans leave out.

The default plans are thin. DeepSeek-V3's leaves attention whole, gpt-oss's names nothing but the embedding: an equality of
states would prove little there. A row below names, by model type and below the text backbone, what is split besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from eyas.errors import UserError
from eyas.progress import console
from eyas.targets.families import Family
from eyas.targets.layout import Layout

Plan = dict[str, str]
_WHOLE = "replicate"  # transformers' name for the style that splits nothing

_MLA: Plan = {
    "layers.*.self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
    "layers.*.self_attn.kv_b_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
}
_GPT_OSS: Plan = {
    "layers.*.self_attn": "local_params",  # the sinks are a bare parameter of it
    "layers.*.self_attn.sinks": "colwise",
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
}
_ADDED: Mapping[str, Plan] = {"deepseek_v2": _MLA, "deepseek_v3": _MLA, "deepseek_v32": _MLA, "gpt_oss": _GPT_OSS}


class _ReplicasTogether(DistributedConfig):
    """Context-parallel ranks hold equal weights and run in step. Left to itself, transformers would wrap replicas in FSDP."""

    @property
    def dp_size(self) -> int:
        return 1


def distributed_config(config: Any, family: Family, layout: Layout) -> DistributedConfig | None:
    """What `from_pretrained` needs to load this rank's share; None where weights are not split.

    Raises UserError for a family whose layers nobody knows how to split.
    """
    if layout.tp == 1:
        return None
    text = config.get_text_config(decoder=True)
    experts = _experts_by_rank(text, layout.tp)
    plan = {family.embed: "embedding_rowwise", **tp_plan(text, layout.tp)}
    return _ReplicasTogether(
        tp_size=layout.tp,
        dp_replicate_size=layout.cp,
        ep_size=layout.tp if experts else 1,
        tp_plan={f"{family.backbone}.{name}": style for name, style in plan.items()},
    )


def tp_plan(text: Any, tp: int) -> Plan:
    """What is added to, or changed in, the model's own plan. Heads that cannot be dealt out evenly stay whole, with their attention."""
    own: Plan = dict(getattr(text, "base_model_tp_plan", None) or {})
    added = dict(_ADDED.get(text.model_type, {}))
    if added and "layers.*.self_attn.kv_b_proj" in added:
        query = "q_proj" if getattr(text, "q_lora_rank", None) is None else "q_b_proj"
        added[f"layers.*.self_attn.{query}"] = "colwise"
    if not any(name.startswith("layers.") for name in own | added):
        raise UserError(
            "this family has no plan for tensor parallelism",
            got=text.model_type,
            allowed="a family whose config in transformers has one, or that has a row in eyas/targets/sharding.py",
            remedy="use --tp 1; --cp splits positions, and needs no plan",
        )
    uneven = {name: heads for name, heads in _heads(text).items() if heads % tp}
    if uneven:
        console.print(f"attention stays whole on every rank: {uneven} cannot be divided by --tp {tp}", markup=False, soft_wrap=True)
        added = {name: _WHOLE for name in own | added if ".self_attn" in name or ".attention" in name}
    return added


def _heads(text: Any) -> dict[str, int]:
    """Multi-head latent attention has no key heads to deal out: keys are made from the latent by each rank for its own heads."""
    names = ["num_attention_heads"] if getattr(text, "kv_lora_rank", None) else ["num_attention_heads", "num_key_value_heads"]
    return {name: int(getattr(text, name)) for name in names if getattr(text, name, None) is not None}


def _experts_by_rank(text: Any, tp: int) -> bool:
    """Whole experts a rank, where the family has a plan for it and their number divides."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    number = next((getattr(text, name) for name in names if getattr(text, name, None) is not None), 0)
    if not getattr(text, "base_model_ep_plan", None) or not number:
        return False
    if number % tp:
        console.print(f"experts are not dealt out: {number} cannot be divided by --tp {tp}", markup=False, soft_wrap=True)
    return number % tp == 0


def own_part(weight: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def changed_part(weight: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` of a weight; of one that is split, each rank changes its own part, in which a row may be a part of a row."""
    if not isinstance(weight, DTensor):
        return change(weight)
    own = change(weight.to_local())
    return DTensor.from_local(own, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride())


def whole_weight(weight: torch.Tensor) -> torch.Tensor:
    """All of a weight; every rank must ask."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
