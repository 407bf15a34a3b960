"""The same draft with its slots in another order: for engines that sort the states they feed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from eyas.draft.checkpoint import filled
from eyas.draft.model import Eagle3Draft


def permute_taps(draft: Eagle3Draft, order: Sequence[int]) -> Eagle3Draft:
    """A draft whose slot i reads what slot order[i] of `draft` reads; fed so, it gives the same outputs.

    The columns of fc, the blocks of `input_norm` and the entries of `fc_norm` move together. The order of the taps in
    the wiring is the caller's to change.
    """
    assert sorted(order) == list(range(draft.config.num_taps)), "every slot once"
    tensors = {}
    for name, tensor in draft.state_dict().items():
        slot = re.fullmatch(r"fc_norm\.(\d+)\.weight", name)
        if slot is not None:
            name = f"fc_norm.{order.index(int(slot[1]))}.weight"
        elif name in ("fc.weight", "input_norm.weight"):
            blocks = tensor.chunk(draft.config.num_taps, dim=-1)
            tensor = torch.cat([blocks[old] for old in order], dim=-1)
        tensors[name] = tensor.clone()
    moved = filled(draft.config, tensors).to(draft.fc.weight.device).train(draft.training)
    moved.share_target_of(draft)
    return moved
