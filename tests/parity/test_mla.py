"""The draft's MLA against transformers' own: the same weights on the same input give the same attention."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.targets.loading import load_target
from eyas.targets.target import Target

LENGTH = 16  # where a sparse attention still sees everything
CASES = [("deepseek_v3", True), ("deepseek_v3", False), ("deepseek_v32", True), ("kimi_k25", True), ("glm_moe_dsa", True)]


def attention_of_the_draft(target: Target, config: DraftConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """What the target's last attention gives on some text, and what the draft's gives on the same input with its weights."""
    draft = Eagle3Draft(config)
    left = warm_start(draft, target)
    assert not {name for name, _ in draft.midlayer.self_attn.named_children()} & set(left), "all of attention was copied"
    seen: list[torch.Tensor] = []
    handle = target.layers[-1].self_attn.register_forward_hook(
        lambda module, args, kwargs, output: seen.extend([kwargs["hidden_states"], output[0]]), with_kwargs=True
    )
    with torch.no_grad():
        target.model(torch.arange(4, 4 + LENGTH)[None])
        handle.remove()
        hidden_BTH, expected_BTH = seen
        both = torch.cat([torch.randn_like(hidden_BTH), hidden_BTH], dim=-1)  # the embedding's half starts at zero
        rotation = draft.midlayer.rotation(torch.arange(LENGTH)[None], both)
        key, value = draft.midlayer.key_value(both, rotation)
        attended = scaled_dot_product_attention(draft.midlayer.query(both, rotation), key, value, is_causal=True)
        return expected_BTH, draft.midlayer.self_attn.project(attended)


@pytest.mark.parametrize(("family", "interleaved"), CASES)
def test_attention_equals_transformers(tiny_targets, family: str, interleaved: bool) -> None:
    target = load_target(str(tiny_targets(family)), device=torch.device("cpu"), dtype=torch.float32)
    target.config.rope_interleave = interleaved
    config = DraftConfig.from_target(target.config, num_taps=1, draft_vocab_size=64, head="mla")
    assert config.mla is not None
    assert config.mla.rope_interleaved is interleaved
    expected, found = attention_of_the_draft(target, config)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_the_style_of_rope_and_the_factor_of_yarn_matter(tiny_targets) -> None:
    """Else the test above could not fail for them."""
    target = load_target(str(tiny_targets("kimi_k25")), device=torch.device("cpu"), dtype=torch.float32)
    config = DraftConfig.from_target(target.config, num_taps=1, draft_vocab_size=64, head="mla")
    assert config.mla is not None
    assert config.mla.softmax_factor > 1.2
    for other in ({"rope_interleaved": False}, {"softmax_factor": 1.0}):
        wrong = dataclasses.replace(config, mla=dataclasses.replace(config.mla, **other))
        expected, found = attention_of_the_draft(target, wrong)
        assert (found - expected).norm() > 1e-2 * expected.norm(), other
