"""Rounding a target's weights for the time of a forward, and seeing what rounding weights carry already.

Shapes: R rows, C columns of a weight matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from eyas.targets.cpu_linear import PackedLinear
from eyas.targets.sharding import changed_part, own_part
from eyas.targets.target import Target

Rounding = Callable[[torch.Tensor], torch.Tensor]

GROUP = 32
# Distinct values among 32 neighbours. Real weights in bf16 have about 31; 8 bits a row or a group leave 28 to 29.8; what has
# fewer bits leaves less than 26. Quantised weights keep these counts when they are stored in any float dtype.
_FOUR_BIT, _EIGHT_BIT = 26.0, 30.4
_CERTAIN = 0.99  # of the groups
_SAMPLED_VALUES = 1 << 14  # of a matrix


def to_int8(weight: torch.Tensor) -> torch.Tensor:
    """Symmetric, one scale an output channel; vectors (norms, biases) stay."""
    return _quantize(weight, weight.shape[-1], 127)


def to_int4(weight: torch.Tensor) -> torch.Tensor:
    """Symmetric, one scale for each 32 neighbours of a row; vectors stay."""
    return _quantize(weight, GROUP, 7)


def to_fp8(weight: torch.Tensor) -> torch.Tensor:
    """e4m3 with one scale an output channel; vectors stay."""
    if weight.ndim < 2:
        return weight
    scale = weight.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return ((weight.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


ROUNDINGS: dict[str, Rounding] = {
    "bfloat16": lambda weight: weight.bfloat16(),
    "float16": lambda weight: weight.half(),
    "fp8": to_fp8,
    "int8": to_int8,
    "int4": to_int4,
}


@contextlib.contextmanager
def rounded(target: Target, change: Rounding) -> Iterator[None]:
    """While the body runs, each decoder layer, the embedding and the final norm compute with `change(weight)`.

    Changed weights exist for one module at a time and only while it runs; the target's own are put back untouched.
    """
    undo: list[Callable[[], None]] = []

    def enter(module: nn.Module, *inputs: Any) -> None:
        undo.extend(_swap(module, change))

    def leave(module: nn.Module, *outputs: Any) -> None:
        while undo:
            undo.pop()()

    modules = [target.embed, *target.layers, target.norm]
    handles = [module.register_forward_pre_hook(enter) for module in modules]
    handles += [module.register_forward_hook(leave, always_call=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        leave(target.norm)


@dataclass(frozen=True)
class Look:
    """What rounding weight matrices show.

    coarsest: of at least a quarter of them (quantisers spare some), by counting values.
    finest: of any of them, granting quantisation only where it is certain: 16 values in every group.
    """

    coarsest: str
    finest: str

    def may_add_to(self, recorded: Look) -> str:
        """The rounding by which these weights may differ from `recorded` ones.

        If those looked just as coarse, the look proves no rounding of these: a few steps of training in bf16 leave most
        weights of a quantised target where they were. Then only what is certain counts.
        """
        return self.finest if self.coarsest == recorded.coarsest else self.coarsest


def look_at(target: Target) -> Look:
    """int4 (fewer than 8 bits), fp8, int8, bfloat16, float16 or float32, as shown by, or declared for, the layers' matrices."""
    declared = _declared(target)
    if declared is not None:
        return Look(declared, declared)
    return target.layout.on_rank_0(lambda: _look_at_own_part(target))  # ranks must not judge by different shares


def _look_at_own_part(target: Target) -> Look:
    order = ("int4", "int8", "bfloat16", "float16", "float32")
    shown = [_shown(weight) for weight in _samples(target)]
    coarse, certain = (sorted(column, key=order.index) for column in zip(*shown, strict=True))
    return Look(coarse[len(coarse) // 4], certain[-1])


def _shown(weight_RC: torch.Tensor) -> tuple[str, str]:
    """What one matrix shows, and what of it is certain."""
    groups = weight_RC.float().flatten()
    groups = groups[: len(groups) // GROUP * GROUP].view(-1, GROUP)
    in_order = groups.sort(dim=-1).values
    distinct = 1.0 + (in_order[:, 1:] != in_order[:, :-1]).sum(-1).float()
    cast = next((name for name in ("bfloat16", "float16") if torch.equal(ROUNDINGS[name](groups).float(), groups)), "float32")
    if distinct.mean() < _FOUR_BIT:
        return "int4", "int4" if (distinct <= 16).float().mean() > _CERTAIN else cast
    return ("int8" if distinct.mean() < _EIGHT_BIT else cast), cast


def _samples(target: Target) -> Iterator[torch.Tensor]:
    """Some rows of every matrix of every layer."""
    for layer in target.layers:
        for weight in [parameter.detach() for parameter in layer.parameters()] + _packed_weights(layer):
            if weight.ndim >= 2 and weight.is_floating_point():
                yield own_part(weight).flatten(0, -2)[: max(1, _SAMPLED_VALUES // weight.shape[-1])].cpu()


def _packed_weights(layer: nn.Module) -> list[torch.Tensor]:
    return [module.packed.to_dense() for module in layer.modules() if isinstance(module, PackedLinear)]


def _declared(target: Target) -> str | None:
    """What a checkpoint that is quantised in memory says of itself."""
    declared = getattr(target.model.config, "quantization_config", None)
    if declared is None:
        return None
    values = declared if isinstance(declared, dict) else vars(declared)
    if "fp8" in str(values.get("quant_method")):
        return "fp8"
    return "int8" if values.get("load_in_8bit") or int(values.get("bits") or 4) >= 8 else "int4"


def _swap(module: nn.Module, change: Rounding) -> list[Callable[[], None]]:
    undo: list[Callable[[], None]] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear):
                undo.append(partial(setattr, parent, name, child))
                setattr(parent, name, _ChangedLinear(child, change))
        for name, parameter in list(parent.named_parameters(recurse=False)):
            if parameter.is_floating_point() and not isinstance(parent, PackedLinear):
                undo.append(partial(parent._parameters.__setitem__, name, parameter))
                parent._parameters[name] = nn.Parameter(changed_part(parameter.detach(), change), requires_grad=False)
    return undo


class _ChangedLinear(nn.Module):
    """In the place of a packed layer, whose hooks it calls."""

    def __init__(self, packed: PackedLinear, change: Rounding) -> None:
        super().__init__()
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.weight = change(packed.packed.to_dense())
        self.bias = None if packed.bias is None else change(packed.bias.detach())
        self._forward_hooks = packed._forward_hooks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


def _quantize(weight: torch.Tensor, group: int, levels: int) -> torch.Tensor:
    if weight.ndim < 2:
        return weight
    columns = weight.shape[-1]
    padded = functional.pad(weight.float(), (0, -columns % group)).unflatten(-1, (-1, group))
    scale = padded.abs().amax(-1, keepdim=True).clamp_min(1e-12) / levels
    return ((padded / scale).round() * scale).flatten(-2)[..., :columns].to(weight.dtype)
