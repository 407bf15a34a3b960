"""The training-time test: all steps of all rows at once, each row seeing exactly what it sees when decoding.

Row p reads (state p, token p+1). Step k at row p reads token p+1+k and the draft's own output of step k-1 at the same
row, has RoPE position p+k, and sees rows <= p of step 0 and row p of steps 1..k:

    tokens     x0   x1   x2   x3   x4   x5
    step 0          p=0  p=1  p=2  p=3  p=4      row p reads x[p+1], predicts x[p+2]
    step 1               p=0  p=1  p=2  p=3      row p reads x[p+2], predicts x[p+3]
    row 2 of step 1 sees: step-0 rows 0, 1, 2 and step-1 row 2

Tokens are the true ones (teacher forcing): a step only counts where all earlier drafts were right, and there the true
token is the drafted one. The method is EAGLE-3's (Li et al. 2025); the mask is tested against a brute-force oracle.

Legend: B batch, T positions, R rows asked for, S = n·H_target, H hidden size, N/K query and key/value heads, D size of
a key, E of a value, G = N/K.
"""

from __future__ import annotations

import torch

from eyas.draft.model import Eagle3Draft


def unroll(
    draft: Eagle3Draft, token_BT: torch.Tensor, states_BTS: torch.Tensor, num_steps: int, row_BR: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """What the draft feeds back after each step: `num_steps` tensors [B, R, H], ready for `draft.logits`.

    Args:
        row_BR: the rows wanted, padded with any valid row; None means all T rows. The rows left out still serve as
            keys and values of step 0.

    Row p of step k is meaningful only if token p+1+k exists; the caller masks the rest.
    """
    batch, length = token_BT.shape
    device = token_BT.device
    if row_BR is None:
        row_BR = torch.arange(length, device=device).expand(batch, length)
    layer = draft.midlayer
    position_BT = torch.arange(length, device=device).expand(batch, length)
    hidden_BTH = draft.fuse(states_BTS)
    both, residual = layer.inputs(draft.embed(_ahead(token_BT, position_BT, 1)), hidden_BTH)
    first_key, first_value = layer.key_value(both, layer.rotation(position_BT, both))
    both, residual = _take(both, row_BR), _take(residual, row_BR)
    visible_BRT = position_BT[:, None, :] <= row_BR[:, :, None]

    own_keys: list[torch.Tensor] = []
    own_values: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    for step in range(num_steps):
        if step > 0:
            both, residual = layer.inputs(draft.embed(_ahead(token_BT, row_BR, 1 + step)), outputs[-1])
        rotation = layer.rotation(row_BR + step, both)
        if step > 0:
            key, value = layer.key_value(both, rotation)
            own_keys.append(key)
            own_values.append(value)
        attended = _attend(layer.query(both, rotation), first_key, first_value, visible_BRT, own_keys, own_values)
        outputs.append(draft.feedback(layer.output(attended, residual)))
    return outputs


def _ahead(token_BT: torch.Tensor, row_BR: torch.Tensor, offset: int) -> torch.Tensor:
    """token[row + offset], clamped to the last token where there is none."""
    return token_BT.gather(1, (row_BR + offset).clamp(max=token_BT.shape[1] - 1))


def _take(x_BTH: torch.Tensor, row_BR: torch.Tensor) -> torch.Tensor:
    return x_BTH.gather(1, row_BR[:, :, None].expand(-1, -1, x_BTH.shape[-1]))


def _attend(
    query_BNRD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTE: torch.Tensor,
    visible_BRT: torch.Tensor,
    own_keys: list[torch.Tensor],
    own_values: list[torch.Tensor],
) -> torch.Tensor:
    """One softmax over the visible rows of step 0 and the row's own earlier steps: [B, N, R, E]."""
    _, heads, rows, size = query_BNRD.shape
    groups = heads // key_BKTD.shape[1]
    query = query_BNRD.unflatten(1, (-1, groups)) * size**-0.5  # [B, K, G, R, D]
    flat = query.flatten(2, 3)
    scores = (flat @ key_BKTD.transpose(-1, -2)).unflatten(2, (groups, rows)).float()
    scores = scores.masked_fill(~visible_BRT[:, None, None], float("-inf"))
    own = [(query * key[:, :, None]).sum(-1, keepdim=True).float() for key in own_keys]
    weights = torch.cat([scores, *own], dim=-1).softmax(-1).to(value_BKTE.dtype)
    length = key_BKTD.shape[2]
    mixed = (weights[..., :length].flatten(2, 3) @ value_BKTE).unflatten(2, (groups, rows))
    for number, value in enumerate(own_values):
        mixed = mixed + weights[..., length + number, None] * value[:, :, None]
    return mixed.flatten(1, 2)
