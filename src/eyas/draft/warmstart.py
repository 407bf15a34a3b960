"""A starting point that already predicts something: parts of the target, put where the draft has the same part.

lm_head, final norm and the layer come from the target's own head, norm and last layer; the embedding half of q, k and
v starts at zero and fc passes the last tap through, so that the untrained draft acts like the target's last layer on
that state. Parts of another shape (experts, another width, another kind of attention) keep their random start, and are
listed. Norms are copied by what they multiply by: some families store it, others (Gemma, Qwen3-Next) its difference from 1.
"""

from __future__ import annotations

import torch
from torch import nn

from eyas.draft.model import Eagle3Draft
from eyas.targets.cpu_linear import weight_of
from eyas.targets.target import Target

_READS_BOTH = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")  # the parts of attention that read [embed | hidden]


@torch.no_grad()
def warm_start(draft: Eagle3Draft, target: Target) -> list[str]:
    """Fill what fits. Returns the names of the parts left random, for the log."""
    nn.init.normal_(draft.fc.weight, std=0.02 / draft.config.num_taps)
    if draft.config.hidden_size == draft.config.target_hidden_size:
        draft.fc.weight[:, -draft.config.target_hidden_size :] += torch.eye(draft.config.hidden_size)
    source = target.layers[-1]
    left: list[str] = []
    if draft.config.lm_head_source == "draft":
        _copy_rows(draft.lm_head.weight, target.head_rows(draft.to_target(torch.arange(draft.config.draft_vocab_size))), "lm_head", left)
    _copy_norm(draft.norm, target.norm, "norm", left)
    for name, part in draft.midlayer.self_attn.named_children():
        if next(part.parameters(), None) is not None:
            copy = _copy_half if name in _READS_BOTH else _copy_norm if name.endswith("norm") else _copy
            copy(part, _find(source, f"self_attn.{name}"), name, left)
    for name in ("gate_proj", "up_proj", "down_proj"):
        _copy(getattr(draft.midlayer.mlp, name), _find(source, f"mlp.{name}"), name, left)
    _copy_norm(draft.midlayer.hidden_norm, _find(source, "input_layernorm"), "hidden_norm", left)
    _copy_norm(draft.midlayer.post_attention_layernorm, _before_mlp(source), "post_attention_layernorm", left)
    return left


def _before_mlp(layer: nn.Module) -> nn.Module | None:
    """The norm of what the MLP reads. Layers that norm what it writes, too, give `post_attention_layernorm` another place."""
    if _find(layer, "post_feedforward_layernorm") is None:
        return _find(layer, "post_attention_layernorm")
    return _find(layer, "pre_feedforward_layernorm")


def _find(root: nn.Module, path: str) -> nn.Module | None:
    value: nn.Module | None = root
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _copy(mine: nn.Module, source: nn.Module | None, name: str, left: list[str]) -> None:
    _copy_rows(mine.get_parameter("weight"), weight_of(source), name, left)


def _copy_norm(mine: nn.Module, source: nn.Module | None, name: str, left: list[str]) -> None:
    weight = weight_of(source)
    if source is not None and weight is not None and _adds_one(source, weight):
        weight = 1 + weight
    _copy_rows(mine.get_parameter("weight"), weight, name, left)


def _adds_one(norm: nn.Module, weight: torch.Tensor) -> bool:
    """Asked of the module itself: signs that alternate come out as what it multiplies by."""
    signs = torch.ones_like(weight)
    signs[1::2] = -1
    factor = norm(signs[None])[0] * signs
    return bool((factor - weight - 1).abs().sum() < (factor - weight).abs().sum())


def _copy_rows(mine: torch.Tensor, weight: torch.Tensor | None, name: str, left: list[str]) -> None:
    if weight is None or weight.shape != mine.shape:
        left.append(name)
        return
    mine.copy_(weight)


def _copy_half(mine: nn.Module, source: nn.Module | None, name: str, left: list[str]) -> None:
    """The source reads H columns, the draft 2H: [embed | hidden]."""
    assert isinstance(mine, nn.Linear)
    weight = weight_of(source)
    half = mine.in_features // 2
    if weight is None or weight.shape != (mine.out_features, half):
        left.append(name)
        return
    mine.weight.zero_()
    mine.weight[:, half:] = weight
