"""What a state says by itself, read through the target's final norm and head ("logit lens").

The state of a later position knows the answer: any barely trained draft that passes states on to the head gains by it. Only what a
draft is right about beyond this speaks for its having been trained on later states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from eyas.evaluate.infer.evidence import Batch
from eyas.targets.target import Target

TRAINED_ON_LATER = 0.75  # accuracy that a draft which was trained to see the answer reaches; one just begun sees much of it too
_HEAD_ROWS = 512


@torch.no_grad()
def lens_accuracy(target: Target, evidence_batches: Sequence[Batch], places: Iterable[int], shift: int) -> torch.Tensor:
    """Where the best of the states `places` (of `Batch.states`) names the label by itself, if row p reads the state of p - shift.

    Returns hits [N], bool, over the valid rows of the batches in order; of the one place with the most of them.
    """
    found = [torch.cat([_hits(target, batch, place, shift) for batch in evidence_batches]) for place in dict.fromkeys(places)]
    return max(found, key=lambda hits_N: int(hits_N.sum()))


def _hits(target: Target, batch: Batch, place: int, shift: int) -> torch.Tensor:
    state_BTH = batch.states[place].roll(shift, dims=1)
    state_BRH = state_BTH.gather(1, batch.row_BR[:, :, None].expand(-1, -1, state_BTH.shape[-1]))
    label_N = batch.label_BR[batch.valid_BR]
    is_final = place == target.num_layers + 1  # it went through the norm already
    chunks = state_BRH[batch.valid_BR].split(_HEAD_ROWS)
    best = [target.head(state_CH if is_final else target.norm(state_CH)).argmax(-1) for state_CH in chunks]
    return (torch.cat(best) == label_N).cpu()
