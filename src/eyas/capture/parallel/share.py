"""Which positions a context-parallel rank computes, and the way back to the order of the text.

    zig-zag, 2 ranks        0 1 | 2 3 | 4 5 | 6 7     rank 0: blocks 0 and 3, rank 1: blocks 1 and 2
    round-robin, 2 ranks    0 1 2 3 4 5 6 7           rank 0: even positions, rank 1: odd ones

Shares are equal: the text is padded to a multiple of 2·cp. Under zig-zag every rank sees about as many keys.

Shapes: P padded positions, S = P/cp positions of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from eyas.capture.rows import round_robin, zig_zag
from eyas.targets.layout import Layout


@dataclass(frozen=True)
class Share:
    """mine_S: this rank's positions, in the order in which it computes them. back_P: where position p stands once all are gathered."""

    layout: Layout
    length: int
    mine_S: torch.Tensor
    back_P: torch.Tensor

    @staticmethod
    def of(layout: Layout, length: int, device: torch.device) -> Share:
        padded = -(-length // (2 * layout.cp)) * 2 * layout.cp
        split = {"zig-zag": zig_zag, "round-robin": round_robin}[layout.order]
        parts = split(padded, layout.cp)
        return Share(layout, length, parts[layout.cp_rank].to(device), torch.cat(parts).argsort().to(device))

    @property
    def padded(self) -> int:
        return len(self.back_P)

    def gather(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        """All ranks' parts [.., S, ..] along `dim`, in the order of the text [.., P, ..]."""
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.layout.cp)]
        dist.all_gather(parts, part.contiguous(), group=self.layout.cp_group)
        return torch.cat(parts, dim).index_select(dim, self.back_P)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """The state [B, T, H] of the text from all ranks' parts [B, S, H]."""
        return self.gather(part, 1)[:, : self.length]
