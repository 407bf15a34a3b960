"""From logits to probabilities to a token, the same for target and draft.

The processing is transformers' own order: temperature, then top-k, then top-p over what is left. A greedy row is the
limit: all probability on the first of the largest logits.

Legend: B rows, T positions, V vocabulary (the target's or the draft's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.engine.request import SamplingParams
from eyas.errors import UserError


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling settings of a batch, one value a row; rows may differ. `all_greedy` opens the fast path."""

    temperature_B: torch.Tensor
    top_p_B: torch.Tensor
    top_k_B: torch.Tensor
    all_greedy: bool
    cuts_tail: bool

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device) -> SamplingBatch:
        return SamplingBatch(
            temperature_B=torch.tensor([each.temperature for each in params], dtype=torch.float32, device=device),
            top_p_B=torch.tensor([each.top_p for each in params], dtype=torch.float32, device=device),
            top_k_B=torch.tensor([each.top_k for each in params], dtype=torch.long, device=device),
            all_greedy=all(each.is_greedy for each in params),
            cuts_tail=any(each.top_p < 1.0 or each.top_k > 0 for each in params if not each.is_greedy),
        )


def greedy(logits_BTV: torch.Tensor, owner: str, valid_BT: torch.Tensor | None = None) -> torch.Tensor:
    """The first of the largest logits [B, T].

    Args:
        owner: "target" or "draft", for the error.
        valid_BT: false where the position is padding and may hold anything.

    Raises:
        UserError: a valid position has a logit that is not a number. Its argmax would be the NaN itself, and a target
            and a draft that are both broken would agree on it for ever.
    """
    best_BT, token_BT = logits_BTV.max(dim=-1)
    _require_finite(best_BT, owner, valid_BT)
    return token_BT


def probabilities(logits_BTV: torch.Tensor, batch: SamplingBatch, owner: str, valid_BT: torch.Tensor | None = None) -> torch.Tensor:
    """fp32 probabilities [B, T, V] that are sampled from; arguments and errors like `greedy`; padding gives a uniform row."""
    logits_BTV = logits_BTV.float()
    if valid_BT is not None:
        logits_BTV = torch.where(valid_BT[..., None], logits_BTV, 0.0)
    best_BT, argmax_BT = logits_BTV.max(dim=-1)
    _require_finite(best_BT, owner, None)
    is_greedy_B11 = (batch.temperature_B == 0.0)[:, None, None]
    scaled_BTV = logits_BTV / torch.where(is_greedy_B11, 1.0, batch.temperature_B[:, None, None])
    if batch.cuts_tail:
        scaled_BTV = _cut_tail(scaled_BTV, batch)
    probs_BTV = scaled_BTV.softmax(-1)
    if not bool(is_greedy_B11.any()):
        return probs_BTV
    one_hot_BTV = torch.zeros_like(probs_BTV).scatter_(-1, argmax_BT[..., None], 1.0)
    return torch.where(is_greedy_B11, one_hot_BTV, probs_BTV)


def draw(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """One token a row [B], by inverting the cumulative distribution at `uniform_B` in [0, 1).

    Rows need not sum to one. Sums run in fp64, and a token of probability zero is never drawn.
    """
    cdf_BV = probs_BV.double().cumsum(-1)
    total_B = cdf_BV[:, -1]
    point_B = torch.minimum(uniform_B.double() * total_B, total_B.nextafter(torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_BV, point_B[:, None], right=True)[:, 0]


def _cut_tail(logits_BTV: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Put -inf outside the top-k tokens, then outside the smallest set that holds top-p of what is left.

    Tokens that tie with the k-th stay, as in transformers; the most likely token always stays.
    """
    sorted_BTV, order_BTV = logits_BTV.sort(dim=-1, descending=True, stable=True)
    size = logits_BTV.shape[-1]
    last_B = torch.where(batch.top_k_B > 0, batch.top_k_B.clamp(max=size), size) - 1
    threshold_BT1 = sorted_BTV.gather(-1, last_B[:, None, None].expand(-1, logits_BTV.shape[1], 1))
    sorted_BTV = sorted_BTV.masked_fill(sorted_BTV < threshold_BT1, float("-inf"))
    probs_BTV = sorted_BTV.softmax(-1)
    before_BTV = probs_BTV.cumsum(-1) - probs_BTV
    outside_BTV = (before_BTV >= batch.top_p_B[:, None, None]) & (batch.top_p_B < 1.0)[:, None, None]
    outside_BTV[..., 0] = False
    sorted_BTV = sorted_BTV.masked_fill(outside_BTV, float("-inf"))
    return torch.empty_like(logits_BTV).scatter_(-1, order_BTV, sorted_BTV)


def _require_finite(best_BT: torch.Tensor, owner: str, valid_BT: torch.Tensor | None) -> None:
    """The maximum carries a NaN or an infinity from anywhere in its row."""
    is_bad_BT = ~torch.isfinite(best_BT)
    if valid_BT is not None:
        is_bad_BT &= valid_BT
    if bool(is_bad_BT.any()):
        raise UserError(
            f"the {owner} gave logits that are not numbers",
            got=f"at {int(is_bad_BT.sum())} of {best_BT.numel()} positions",
            allowed="finite logits",
            remedy=f"the {owner}'s weights are damaged, or its dtype overflows: try --dtype fp32",
        )
