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

_NUM_CANDIDATES = 1024
_ANY = 1 << 40  # more tokens than any vocabulary has
MIN_TEMPERATURE = 1e-6  # below it logits would overflow, and all probability lies on the largest anyway


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
            top_k_B=torch.tensor([min(each.top_k, _ANY) for each in params], dtype=torch.long, device=device),
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
    scaled_BTV = logits_BTV / torch.where(is_greedy_B11, 1.0, batch.temperature_B[:, None, None].clamp(min=MIN_TEMPERATURE))
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

    Tokens that tie with the k-th stay, as in transformers; the most likely token always stays. Sorting a whole
    vocabulary takes longer than a draft step, so the largest few are tried first, and taken if the cut lies among them.
    """
    size = logits_BTV.shape[-1]
    if size > _NUM_CANDIDATES:
        cut_BTV = _cut_sorted(logits_BTV, *logits_BTV.topk(_NUM_CANDIDATES, dim=-1), batch)
        if cut_BTV is not None:
            return cut_BTV
    cut_BTV = _cut_sorted(logits_BTV, *logits_BTV.sort(dim=-1, descending=True, stable=True), batch)
    assert cut_BTV is not None, "nothing lies beyond a whole vocabulary"
    return cut_BTV


def _cut_sorted(logits_BTV: torch.Tensor, sorted_BTC: torch.Tensor, id_BTC: torch.Tensor, batch: SamplingBatch) -> torch.Tensor | None:
    """`_cut_tail` by the C largest logits and their ids; None if a row's cut, or a tie with its k-th, may lie beyond them."""
    num_candidates = sorted_BTC.shape[-1]
    has_k_B11, has_p_B11 = (batch.top_k_B > 0)[:, None, None], (batch.top_p_B < 1.0)[:, None, None]
    last_B11 = (torch.where(batch.top_k_B > 0, batch.top_k_B, num_candidates).clamp(max=num_candidates) - 1)[:, None, None]
    threshold_BT1 = sorted_BTC.gather(-1, last_B11.expand(-1, sorted_BTC.shape[1], 1))
    outside_BTC = has_k_B11 & (sorted_BTC < threshold_BT1)
    kept_BTC = sorted_BTC.masked_fill(outside_BTC, float("-inf"))
    total_BT1 = torch.where(has_k_B11, kept_BTC.logsumexp(-1, keepdim=True), logits_BTV.logsumexp(-1, keepdim=True))
    probs_BTC = (kept_BTC - total_BT1).exp()
    outside_BTC |= has_p_B11 & (probs_BTC.cumsum(-1) - probs_BTC >= batch.top_p_B[:, None, None])
    outside_BTC[..., 0] = False
    if num_candidates < logits_BTV.shape[-1]:
        cut_by_k_BT = sorted_BTC[..., -1] < threshold_BT1[..., 0]
        is_whole_BT = torch.where(has_k_B11[..., 0], cut_by_k_BT, outside_BTC[..., -1])
        if not bool((is_whole_BT | (batch.temperature_B == 0.0)[:, None]).all()):
            return None
    return torch.full_like(logits_BTV, float("-inf")).scatter_(-1, id_BTC, sorted_BTC.masked_fill(outside_BTC, float("-inf")))


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
