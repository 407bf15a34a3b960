"""Is a difference between two greedy answers a tie, or a bug?

In bf16 the same sum taken in another order differs in its last bits, and verifying four tokens at once sums in another
order than one at a time. Where the target's two best logits lie closer than that, either is its honest choice. This
looks at the first difference: how far apart the two tokens' logits are there, and how far the same logits move when the
same text is run in pieces of other sizes. Only a gap inside that noise is a tie; fp32 has no excuse in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.targets.cache import SlotCache
from eyas.targets.target import Target

_PIECES = (1, 2, 3, 5)  # tokens a forward over the last part of the text
_TAIL = 16  # tokens of the text that are run in pieces
_NUM_LOGITS = 64  # the noise is taken from this many of the largest logits


@dataclass(frozen=True)
class Difference:
    """The first difference of two answers.

    `gap` is the best logit minus the lower one of the two tokens', so a token far from the top never passes; `noise` is
    the largest movement of a top logit between runs plus two steps of the dtype at that size. A token is None where one
    answer has ended.
    """

    position: int
    ours: int | None
    reference: int | None
    gap: float | None
    noise: float | None

    @property
    def is_tie(self) -> bool:
        return self.gap is not None and self.noise is not None and self.gap <= self.noise

    def text(self) -> str:
        if self.gap is None or self.noise is None:
            return f"at token {self.position} one answer ends and the other goes on: {self.ours} and {self.reference}"
        kind = "a tie" if self.is_tie else "NOT a tie"
        return f"token {self.position}: {self.ours} and {self.reference}, logits {self.gap:.4g} apart, noise {self.noise:.4g}: {kind}"


@torch.no_grad()
def explain_difference(target: Target, prompt: Sequence[int], ours: Sequence[int], reference: Sequence[int]) -> Difference | None:
    """Look at the first place where two answers to `prompt` differ; None if they are equal."""
    shorter = min(len(ours), len(reference))
    position = next((place for place in range(shorter) if ours[place] != reference[place]), shorter)
    if position == len(ours) == len(reference):
        return None
    if position == shorter:
        longer = ours if len(ours) > shorter else reference
        left, right = (longer[position], None) if longer is ours else (None, longer[position])
        return Difference(position, left, right, None, None)
    text = [*prompt, *ours[:position]]
    runs_RV = torch.stack([_last_logits(target, text, piece) for piece in (len(text), *_PIECES)])
    best_V = runs_RV[0]
    both = torch.tensor([ours[position], reference[position]], device=best_V.device)
    gap = float(best_V.max() - best_V[both].min())
    top_V = best_V.topk(min(_NUM_LOGITS, len(best_V))).indices
    moved = float((runs_RV[:, top_V].amax(0) - runs_RV[:, top_V].amin(0)).max())
    step = float(best_V.abs().max()) * torch.finfo(target.dtype).eps
    return Difference(position, ours[position], reference[position], gap, moved + 2 * step)


def _last_logits(target: Target, text: Sequence[int], piece: int) -> torch.Tensor:
    """fp32 logits [V] behind `text`, its tail run `piece` tokens at a time."""
    cache = SlotCache(target.model.config, 1, len(text), target.device)
    head = max(0, len(text) - _TAIL) if piece < len(text) else 0
    starts = [*([0] if head else []), *range(head, len(text), piece)]
    final_1TH = torch.empty(0)
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        position_1T, mask = cache.begin(stop - start)
        ids_1T = torch.tensor([text[start:stop]], device=target.device)
        output = target.backbone(input_ids=ids_1T, position_ids=position_1T, attention_mask=mask, cache=cache, use_cache=True)
        final_1TH = output.last_hidden_state
        cache.advance(stop - start)
    return target.head(final_1TH[:, -1:])[0, 0].float()
