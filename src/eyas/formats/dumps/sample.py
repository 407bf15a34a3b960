"""What every format is read into, and what a format says of itself.

Shapes: T positions of a text, n slots, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.formats.ids import Meaning


@dataclass(frozen=True)
class ForeignSample:
    """One text as the file has it. token_ids [T]; states [T, n, H]; last [T, H], the state that labels come from.

    loss_mask [T] and last are None where the file has none. prenorm: what the file says about `last`, None if nothing.
    first_token_missing: the format shifts its ids, so token_ids[0] is a placeholder. eight_bit: states were stored in 8 bits.
    """

    id: str
    token_ids: torch.Tensor
    states: torch.Tensor
    last: torch.Tensor | None
    loss_mask: torch.Tensor | None
    prenorm: bool | None = None
    first_token_missing: bool = False
    eight_bit: bool = False


@dataclass(frozen=True)
class DumpFormat:
    """A format: how its files are found and read, and what its layer ids mean.

    Args:
        stated_ids: the layer ids that a dump itself states, where the format has them.
        default_ids: those that the project takes if nothing is said, for a target of N layers; None: it has no default.
        last_in_stack: the last of the stacked states is the one that labels come from.
        said: where this was read, for people.
    """

    name: str
    convention: Meaning
    files: Callable[[Path], list[Path]]
    read: Callable[[Path], Iterator[ForeignSample]]
    default_ids: Callable[[int], list[int]] | None
    said: str
    stated_ids: Callable[[Path], list[int] | None] = lambda path: None
    last_in_stack: bool = False
