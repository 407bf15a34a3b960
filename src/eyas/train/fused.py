"""lm_head, softmax and soft cross-entropy in one pass over blocks of rows that stay in the processor's cache.

The plain way, F.cross_entropy on whole logits, writes and reads M x V logits about ten times; here a block's logits are
turned into its loss and its gradient at once. The tests hold values and gradients against the plain way; the idea is
that of fused linear cross-entropy kernels (Liger, Hsu et al. 2024).

Legend: M rows with the step, N rows with labels, H hidden size, V draft vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

BLOCK = 256  # rows: 256 x 8192 fp32 logits are 8 MB


class _SoftHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: torch.Tensor, weight_VH: torch.Tensor, probs_NV: torch.Tensor, label_M: torch.Tensor, known_M: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        losses = torch.empty(len(x_MH), dtype=torch.float32, device=x_MH.device)
        best = torch.empty(len(x_MH), dtype=torch.long, device=x_MH.device)
        gradient_MV = torch.empty(len(x_MH), weight_VH.shape[0], dtype=x_MH.dtype, device=x_MH.device)
        for start in range(0, len(x_MH), BLOCK):
            part = slice(start, start + BLOCK)
            logits = F.linear(x_MH[part], weight_VH).float()
            probs = probs_NV[label_M[part]]
            top, best[part] = logits.max(-1)
            known = known_M[part].float()
            expected = (probs * logits).sum(-1)  # probabilities sum to one: loss = logsumexp - expected logit
            softmax = logits.sub_(top[:, None]).exp_()
            total = softmax.sum(-1)
            losses[part] = (total.log() + top - expected) * known
            softmax.mul_((known / total)[:, None]).sub_(probs.mul_(known[:, None]))
            gradient_MV[part] = softmax
        ctx.save_for_backward(gradient_MV, x_MH, weight_VH)
        ctx.mark_non_differentiable(best)
        return losses, best

    @staticmethod
    def backward(ctx: Any, grad_M: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        gradient_MV, x_MH, weight_VH = ctx.saved_tensors
        scale = grad_M[:, None].to(x_MH.dtype)
        return (gradient_MV @ weight_VH) * scale, gradient_MV.T @ (x_MH * scale), None, None, None


def soft_head_loss(
    x_MH: torch.Tensor, weight_VH: torch.Tensor, probs_NV: torch.Tensor, label_M: torch.Tensor, known_M: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [M] in fp32 (zero where not `known_M`) and the most likely draft ids [M].

    Args:
        x_MH: what lm_head reads; its dtype is that of the products, softmax and loss are fp32.
        probs_NV: teacher probabilities; row m uses probs_NV[label_M[m]].
    """
    return _SoftHeadLoss.apply(x_MH, weight_VH.to(x_MH.dtype), probs_NV, label_M, known_M)
