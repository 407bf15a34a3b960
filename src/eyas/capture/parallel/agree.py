"""Do all ranks hold the same? A rank that holds a part of a sum, or another order of rows, must not go unseen.

Compared are hashes of the bits, so the check costs one number a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.errors import UserError
from eyas.targets.layout import Layout

_ODD = 0x5851F42D4C957F2D  # Knuth's multiplier for 64 bits
_CHUNK = 1 << 22  # elements at a time: as 64-bit numbers they take several times the state's own room
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_hash(tensor: torch.Tensor) -> int:
    """A number that changes with any bit of `tensor`, and with the order of its elements."""
    bits = tensor.contiguous().view(_BITS[tensor.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), _CHUNK):
        part = bits[start : start + _CHUNK].long()
        place = torch.arange(start + 1, start + 1 + len(part), device=bits.device) * _ODD | 1  # wraps around, as wanted
        total += (part * place).sum()
    return int(total)


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
