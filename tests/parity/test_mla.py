"""The draft's MLA against transformers' DeepSeek-V3: the same weights on the same input give the same attention."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.targets.loading import load_target


@pytest.mark.parametrize("interleaved", [True, False])
def test_attention_equals_transformers(tiny_targets, interleaved: bool) -> None:
    target = load_target(str(tiny_targets("deepseek_v3")), device=torch.device("cpu"), dtype=torch.float32)
    text = target.config
    mla = MlaConfig(text.kv_lora_rank, text.qk_nope_head_dim, text.qk_rope_head_dim, text.v_head_dim, text.q_lora_rank, interleaved)
    config = DraftConfig.from_target(text, num_taps=1, draft_vocab_size=64)
    heads = text.num_attention_heads
    draft = Eagle3Draft(
        dataclasses.replace(config, mla=mla, num_attention_heads=heads, num_key_value_heads=heads, head_dim=mla.qk_head_dim)
    )
    left = warm_start(draft, target)
    assert not {name for name, _ in draft.midlayer.self_attn.named_children()} & set(left), "all of attention was copied"

    attention = target.layers[-1].self_attn
    attention.config.rope_interleave = interleaved
    seen: list[torch.Tensor] = []
    attention.register_forward_hook(
        lambda module, args, kwargs, output: seen.extend([kwargs["hidden_states"], output[0]]), with_kwargs=True
    )
    with torch.no_grad():
        target.model(torch.arange(4, 36)[None])
        hidden_BTH, expected_BTH = seen
        both = torch.cat([torch.randn_like(hidden_BTH), hidden_BTH], dim=-1)  # the embedding's half starts at zero
        rotation = draft.midlayer.rotation(torch.arange(32)[None], both)
        key, value = draft.midlayer.key_value(both, rotation)
        attended = scaled_dot_product_attention(draft.midlayer.query(both, rotation), key, value, is_causal=True)
        torch.testing.assert_close(draft.midlayer.self_attn.project(attended), expected_BTH, atol=2e-5, rtol=1e-4)
