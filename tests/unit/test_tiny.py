"""Tiny targets: every family loads through the ordinary door, its head agrees with its logits, trained ones have learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import UserError
from eyas.targets.generate import BatchSettings, generate_batch
from eyas.targets.loading import auto_class, load_target
from eyas.targets.target import Target
from eyas.targets.tiny import TINY_FAMILIES, held_out_top1, make_tiny, tiny_tokenizer

CPU = torch.device("cpu")


def _load(folder: Path) -> Target:
    return load_target(str(folder), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_parts_of_every_family_are_found_and_the_head_gives_the_models_logits(tiny_targets, family):
    target = _load(tiny_targets(family))
    ids_BT = torch.randint(4, target.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected_BTV = target.model(input_ids=ids_BT).logits
        got_BTV = target.head(target.backbone(input_ids=ids_BT).last_hidden_state)
    torch.testing.assert_close(got_BTV, expected_BTV, rtol=1e-5, atol=1e-5)
    assert len(target.layers) == target.num_layers == 4
    assert target.vocab_size == len(target.tokenizer) == 512
    assert target.stop_ids == (target.tokenizer.eos_token_id,)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family_runs_in_bf16(tiny_targets, family):
    """With weights laid out for oneDNN; some models ask a weight for its dtype, and keep some in fp32."""
    target = load_target(str(tiny_targets(family)), device=CPU, dtype=torch.bfloat16)
    exact = _load(tiny_targets(family))
    ids_BT = torch.randint(4, target.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got_BTH, expected_BTH = (one.backbone(input_ids=ids_BT).last_hidden_state.float() for one in (target, exact))
    error_BT = (got_BTH - expected_BTH).norm(dim=-1) / expected_BTH.norm(dim=-1)
    assert error_BT.median() < 0.1


def test_deepseek_has_mla_and_a_dense_layer_before_its_experts(tiny_targets):
    target = _load(tiny_targets("deepseek_v3"))
    assert hasattr(target.layers[0].self_attn, "kv_a_proj_with_mqa")
    assert not hasattr(target.layers[0].mlp, "experts")
    assert all(hasattr(layer.mlp, "experts") for layer in target.layers[1:])


def test_kimi_loads_in_the_layout_in_which_it_is_published(tiny_targets, tmp_path):
    """One tensor an expert, the text model first in the names, and its layers called layers: transformers 5.24 writes blocks."""
    target = _load(tiny_targets("kimi_k25"))
    fresh = auto_class("kimi_k25").from_config(target.model.config, dtype=torch.float32)  # a loaded one is saved as it was found
    fresh.load_state_dict(target.model.state_dict())
    fresh.save_pretrained(tmp_path, save_original_format=True)
    target.tokenizer.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    published = {name.replace("language_model.model.blocks.", "language_model.model.layers."): value for name, value in written.items()}
    assert {"language_model.lm_head.weight", "language_model.model.layers.1.mlp.experts.3.up_proj.weight"} <= set(published)
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ids_BT = torch.arange(4, 44)[None]
    with torch.no_grad():
        assert torch.equal(_load(tmp_path).model(ids_BT).logits, target.model(ids_BT).logits)


def test_equal_seeds_give_equal_files_and_other_seeds_do_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_tiny("llama", tmp_path / name, trained=False, seed=seed)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3"])
def test_trained_ones_foresee_unseen_text_and_end_their_answers(tiny_targets, family):
    target = _load(tiny_targets(family, trained=True))
    assert held_out_top1(target.model, target.tokenizer) >= 0.6
    prompts = []
    for question in ("Tell me two things about the fox.", "Count from three to eight.", "Say delta four times."):
        text = target.tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        prompts.append((question, target.tokenizer.encode(text, add_special_tokens=False)))
    answers = {item.key: item for item in generate_batch(target, prompts, BatchSettings(max_new_tokens=60))}
    assert [item.reason for item in answers.values()] == ["stop"] * 3


def test_any_text_survives_the_tokenizer():
    tokenizer = tiny_tokenizer()
    text = "Grüße, 世界!\n\tdef f(x): return x**2  <tag>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_unknown_family_and_a_folder_in_use_are_errors(tmp_path):
    with pytest.raises(UserError, match="no tiny model"):
        make_tiny("mamba", tmp_path / "x", trained=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        make_tiny("llama", tmp_path / "full", trained=False)
    assert (tmp_path / "full/file").read_text() == "mine"
