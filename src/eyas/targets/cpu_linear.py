"""Linear layers with weights laid out once for oneDNN, for bf16 on the CPU.

`F.linear` re-orders a bf16 weight at every call, which costs as much as the multiplication when few rows pass.
Measured by benchmarks/loop.py; the values are those of the ordinary kernel up to the order of summation.
"""

from __future__ import annotations

import torch
from torch import nn


class PackedLinear(nn.Module):
    """Stands in for an nn.Linear that is only read.

    `weight` is kept only where others need it (embedding ties); elsewhere it has dtype and shape, which some models ask
    for, but no values: to compute with it is an error.
    """

    def __init__(self, linear: nn.Linear, keep_weight: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias
        self.weight = linear.weight if keep_weight else torch.empty_like(linear.weight, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def weight_of(module: nn.Module | None) -> torch.Tensor | None:
    """The weight of a module, packed or not; None if it has none."""
    if isinstance(module, PackedLinear):
        return module.packed.to_dense()
    return getattr(module, "weight", None)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack_linears(model: nn.Module, keep: tuple[nn.Module, ...] = ()) -> int:
    """Replace every nn.Linear below `model` that is in bf16; those in `keep` go on showing their `weight`. Returns how many."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(parent, name, PackedLinear(child, keep_weight=child in keep))
                count += 1
    return count
