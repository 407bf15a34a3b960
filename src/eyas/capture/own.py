"""Are answers what the target itself would say? A draft trained on other words learns to foresee somebody else."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.capture.forward import capture_batch
from eyas.capture.plan import Text
from eyas.errors import UserError
from eyas.targets.target import Target

_BATCH = 8


def own_share(target: Target, texts: Sequence[Text]) -> float:
    """The share of answer tokens that the target itself prefers at their place: 1 for its own greedy text, but for ties.

    Raises UserError if the texts hold no answer token.
    """
    own = answered = 0
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        for text, captured in zip(batch, capture_batch(target, [text.token_ids for text in batch], ()), strict=True):
            top1 = captured.top1.tolist()
            hits = [top1[p - 1] == text.token_ids[p] for p in range(1, len(text.token_ids)) if text.loss_mask[p]]
            own, answered = own + sum(hits), answered + len(hits)
    if not answered:
        raise UserError("the texts hold no answer token", got=f"{len(texts)} texts")
    return own / answered
