"""The doctor's own way of running the draft's steps elsewhere: in their right places it is the trainer's, and elsewhere it is not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eyas.doctor.replay.shifts import first_step, two_steps
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll

MLA = MlaConfig(kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, q_lora_rank=16, softmax_factor=1.3)
LENGTH = 12


def make_draft(mla: bool) -> Eagle3Draft:
    torch.manual_seed(0)
    config = DraftConfig(32, 32, 3, 64, 4, 2, 8, 50, 20, {"rope_type": "default", "rope_theta": 1e4}, 128)
    config = dataclasses.replace(config, mla=MLA, num_key_value_heads=4, head_dim=12) if mla else config
    draft = Eagle3Draft(config)
    for parameter in draft.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    draft.use_embedding(torch.nn.Embedding(50, 32).requires_grad_(False))
    return draft.eval().requires_grad_(False)


def texts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    token_BT = torch.randint(0, 50, (2, LENGTH), generator=generator)
    return token_BT, torch.randn(2, LENGTH, 96, generator=generator), torch.arange(LENGTH - 4).expand(2, -1)


@pytest.mark.parametrize("mla", [False, True])
def test_in_their_places_the_steps_are_those_of_training(mla: bool):
    draft, (token_BT, states_BTS, row_BR) = make_draft(mla), texts()
    wanted = unroll(draft, token_BT, states_BTS, 2, row_BR)
    torch.testing.assert_close(two_steps(draft, token_BT, states_BTS, row_BR, 1, 1, 0), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first_step(draft, token_BT, states_BTS, row_BR, 0), wanted[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("moved", [(0, 1, 0), (1, 2, 0), (1, 1, -1)])
def test_elsewhere_the_second_step_is_another_and_the_first_the_same(moved: tuple[int, int, int]):
    draft, (token_BT, states_BTS, row_BR) = make_draft(False), texts()
    wanted = unroll(draft, token_BT, states_BTS, 2, row_BR)
    found = two_steps(draft, token_BT, states_BTS, row_BR, *moved)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[1], wanted[1], rtol=1e-2)


def test_a_row_sees_as_far_behind_itself_as_it_is_let():
    draft, (token_BT, states_BTS, row_BR) = make_draft(False), texts()
    other_BT = token_BT.clone()
    other_BT[:, 5] = (other_BT[:, 5] + 7) % 50  # row 4 reads token 5
    for beyond, changed in ((0, 4), (1, 3), (3, 1)):
        before, after = (first_step(draft, tokens, states_BTS, row_BR, beyond)[0] for tokens in (token_BT, other_BT))
        same_R = (before - after).abs().amax((0, 2)) < 1e-6
        assert same_R.tolist() == [row < changed for row in range(LENGTH - 4)], beyond
