"""The accept rule of speculative sampling (Leviathan et al. 2023, Chen et al. 2023), for a whole batch at once.

    position            0     1     2          K
    proposed            d0    d1    d2         -
    target's choice     p0    p1    p2   ...   pK       p_i follows the tokens before it and d_0 .. d_(i-1)

d_i is kept with probability min(1, p_i(d_i) / q_i(d_i)) while all before it are kept. At the first one refused, the
token is drawn from the residual (p_i - q_i)+; if none is refused, from p_K. Either way a round emits the kept tokens
and one more, and each is distributed as the target alone would have it. With all probability on one token this is:
keep while equal to the target's argmax.

Rows may have fewer proposals than K; behind a row's last proposal nothing is kept, and q is zero there, so that the
residual is the target's own distribution.

Legend: B rows, K proposed positions, T = K + 1, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.engine.sampling import draw


@dataclass(frozen=True)
class Verdict:
    """Row b emits `token_BT[b, : num_accepted_B[b] + 1]`."""

    num_accepted_B: torch.Tensor
    token_BT: torch.Tensor


def verify_greedy(target_token_BT: torch.Tensor, proposed_BK: torch.Tensor, num_proposed_B: torch.Tensor) -> Verdict:
    """Keep proposals while they equal the target's argmax. The emitted tokens are the target's own choices."""
    num_accepted_B = _leading(proposed_BK == target_token_BT[:, :-1], num_proposed_B)
    return Verdict(num_accepted_B, target_token_BT)


def verify_sampled(
    target_probs_BTV: torch.Tensor,
    draft_probs_BKV: torch.Tensor,
    proposed_BK: torch.Tensor,
    num_proposed_B: torch.Tensor,
    uniform_BT: torch.Tensor,
) -> Verdict:
    """The stochastic rule.

    Args:
        draft_probs_BKV: the distribution that `proposed_BK` was drawn from, over the TARGET's vocabulary: zero where
            the draft has no token.
        uniform_BT: numbers in [0, 1): one for each proposal, the last for the extra token.
    """
    rows_B = torch.arange(len(proposed_BK), device=proposed_BK.device)
    p_BK = target_probs_BTV[:, :-1].gather(-1, proposed_BK[..., None])[..., 0]
    q_BK = draft_probs_BKV.gather(-1, proposed_BK[..., None])[..., 0]
    num_accepted_B = _leading(uniform_BT[:, :-1] * q_BK < p_BK, num_proposed_B)

    p_BV = target_probs_BTV[rows_B, num_accepted_B]
    refused_B = num_accepted_B < num_proposed_B
    q_BV = torch.zeros_like(p_BV)
    q_BV[refused_B] = draft_probs_BKV[refused_B, num_accepted_B[refused_B]]
    extra_B = draw(residual(p_BV, q_BV), uniform_BT[:, -1])
    token_BT = torch.cat([proposed_BK, extra_B[:, None]], dim=1).scatter(1, num_accepted_B[:, None], extra_B[:, None])
    return Verdict(num_accepted_B, token_BT)


def residual(p_BV: torch.Tensor, q_BV: torch.Tensor) -> torch.Tensor:
    """(p - q)+, not normalised; p itself where rounding leaves nothing of it (p = q is never refused exactly)."""
    left_BV = (p_BV - q_BV).clamp_(min=0.0)
    return torch.where(left_BV.sum(-1, keepdim=True) > 0.0, left_BV, p_BV)


def _leading(kept_BK: torch.Tensor, num_proposed_B: torch.Tensor) -> torch.Tensor:
    """How many proposals are kept before the first refused one [B]."""
    offered_BK = torch.arange(kept_BK.shape[1], device=kept_BK.device) < num_proposed_B[:, None]
    return (kept_BK & offered_BK).long().cumprod(1).sum(1)
