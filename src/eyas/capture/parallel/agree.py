"""Do all ranks hold the same? A rank that holds a part of a sum, or another order of rows, must not go unseen.

Compared are hashes of the bits, so the check costs one number a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.errors import UserError
from eyas.targets.layout import Layout

_ODD = 0x5851F42D4C957F2D  # Knuth's multiplier for 64 bits
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_hash(tensor: torch.Tensor) -> int:
    """A number that changes with any bit of `tensor`, and with the order of its elements."""
    bits = tensor.contiguous().view(_BITS[tensor.element_size()]).flatten().long()
    place = torch.arange(1, len(bits) + 1, device=bits.device) * _ODD | 1  # wraps around, as wanted
    return int((bits * place).sum())


def require_agreement(layout: Layout, what: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises UserError, on every rank, if the ranks do not hold the same bits."""
    if layout.size == 1:
        return
    numbers = layout.of_all(sum((bit_hash(tensor) * (2 * place + 1)) for place, tensor in enumerate(tensors)) % (1 << 63))
    other = [rank for rank, number in enumerate(numbers) if number != numbers[0]]
    if other:
        raise UserError(
            f"ranks hold different {what}",
            got=f"ranks {', '.join(map(str, other))} differ from rank 0",
            allowed="the same bits on every rank",
            remedy="use the same kind of device and the same versions for all ranks; if they are, this is a bug of the layout: report it",
        )
