"""One rank's share of a branch under tensor parallelism, worked out from the target's own weights.

The last linear layer of a branch is cut along its inputs: rank r of R multiplies the r-th part of them, and adds its share to
the residual before the all-reduce puts the shares together. So a state that was captured too early can be recognised from one
rank's file alone. Branches that are no plain sum (experts, norms behind the branch) are left out: their shares would not add up.

Shapes: P positions, I inputs of the linear layer, K sketch size, R ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from eyas.capture.fingerprint import sketch, sketch_columns
from eyas.targets.cpu_linear import PackedLinear, weight_of
from eyas.targets.target import Target

RANKS = (2, 3, 4, 6, 8, 16)
_ATTENTION, _MLP = ("self_attn", "attention", "attn"), ("mlp", "feed_forward", "block_sparse_moe")
_ADDS_UP = 0.02

Shares = Mapping[tuple[str, str], Mapping[int, torch.Tensor]]  # (state before, state after) -> ranks -> sketches [R, P, K]


@dataclass
class ShareReader:
    """The inputs of the last linear layer of every branch, sketched as they pass: (layer, kind) -> ranks -> [R, P, K]."""

    hidden_size: int
    seen: dict[tuple[int, str], dict[int, torch.Tensor]] = field(default_factory=dict)

    def read(self, place: tuple[int, str], linear: Any, input_PI: torch.Tensor) -> None:
        if linear.out_features != self.hidden_size:
            self.seen.pop(place, None)  # not the last one, or none that leads back into the residual
            return
        size = linear.in_features
        weight_HI = weight_of(linear)
        assert weight_HI is not None
        part_IK = sketch_columns(weight_HI.T.float(), 0, self.hidden_size)
        input_PI = input_PI.float().cpu()
        self.seen[place] = {
            ranks: torch.stack([input_PI[:, columns] @ part_IK[columns] for columns in _parts(size, ranks)])
            for ranks in RANKS
            if size % ranks == 0
        }

    def shares(self, states: Mapping[str, torch.Tensor]) -> Shares:
        """Those of which the sum is the branch between two of the `states`, [P, H] each by its name."""
        found = {}
        for (layer, kind), by_ranks in self.seen.items():
            names = (f"boundary:{layer}", f"mid:{layer}") if kind == "attention" else (f"mid:{layer}", f"boundary:{layer + 1}")
            if not by_ranks or not all(name in states for name in names):
                continue
            branch_PK = sketch(states[names[1]]) - sketch(states[names[0]])
            total_PK = next(iter(by_ranks.values())).sum(0)
            same_rows = total_PK.shape == branch_PK.shape  # an expert sees its own tokens only
            if same_rows and float((total_PK - branch_PK).norm()) <= _ADDS_UP * float(branch_PK.norm()):
                found[names] = by_ranks
        return found


@contextlib.contextmanager
def reading_shares(target: Target) -> Iterator[ShareReader]:
    """While the body runs the target over one text, its branches are read."""
    reader = ShareReader(target.hidden_size)
    handles = [
        linear.register_forward_hook(_hook(reader, (layer, kind)))
        for layer, module in enumerate(target.layers)
        for kind, names in (("attention", _ATTENTION), ("mlp", _MLP))
        for branch in [getattr(module, name) for name in names if hasattr(module, name)]
        for linear in branch.modules()
        if isinstance(linear, nn.Linear | PackedLinear)
    ]
    try:
        yield reader
    finally:
        for handle in handles:
            handle.remove()


def _hook(reader: ShareReader, place: tuple[int, str]) -> Any:
    return lambda linear, args, output: reader.read(place, linear, args[0].flatten(0, -2))


def _parts(size: int, ranks: int) -> list[slice]:
    width = size // ranks
    return [slice(rank * width, (rank + 1) * width) for rank in range(ranks)]
