"""A draft whose slots were reordered gives the same outputs when it is fed the same states in the new order."""

from __future__ import annotations

import itertools

import pytest
import torch

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.permute import permute_taps
from eyas.draft.unroll import unroll

H = 16


@pytest.mark.parametrize("switches", [{}, {"norm_before_fc": True}, {"fc_norm": True}, {"norm_before_fc": True, "fc_norm": True}])
def test_the_outputs_are_the_same(switches: dict[str, bool]) -> None:
    torch.manual_seed(0)
    draft = Eagle3Draft(DraftConfig(H, H, 3, 20, 2, 1, 8, 30, 12, {"rope_type": "default", "rope_theta": 1e4}, 64, **switches))
    for parameter in draft.parameters():
        torch.nn.init.uniform_(parameter, 0.2, 1.5)  # norms that are not ones: their blocks must move, too
    draft.use_embedding(torch.nn.Embedding(30, H).requires_grad_(False))
    token_BT, states = torch.randint(0, 30, (1, 9)), [torch.randn(1, 9, H) * scale for scale in (1, 3, 9)]
    with torch.no_grad():
        before = draft.logits(unroll(draft, token_BT, torch.cat(states, -1), 2)[1])
        for order in itertools.permutations(range(3)):
            moved = permute_taps(draft, order)
            fed = torch.cat([states[old] for old in order], -1)
            torch.testing.assert_close(moved.logits(unroll(moved, token_BT, fed, 2)[1]), before)
            if order != (0, 1, 2):
                assert not torch.allclose(draft.logits(unroll(draft, token_BT, fed, 2)[1]), before)
