"""Exports for engines: what is written, in which order, and that it is still the same draft."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.draft.checkpoint import draft_wiring_fields, save_draft
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.engines import export
from eyas.engines.catalog import parse_engine
from eyas.engines.export import export_for_engine, prove_permutation
from eyas.engines.resolve import resolve
from eyas.engines.target_facts import TargetFacts
from eyas.errors import UserError
from eyas.taps import parse_taps
from eyas.wiring import Wiring

H, V = 16, 40
PLAIN = DraftConfig(
    hidden_size=H,
    target_hidden_size=H,
    num_taps=3,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=V,
    draft_vocab_size=12,
    rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
    max_position_embeddings=64,
)
MLA = MlaConfig(kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6, q_lora_rank=8)
MLA_HEAD = {"mla": MLA, "num_key_value_heads": 4, "head_dim": 8}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    sizes = {"num_hidden_layers": 10, "hidden_size": H, "vocab_size": V}
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes}))
    return folder


def make_draft(folder: Path, taps: str, **changes: Any) -> Eagle3Draft:
    """A random draft with norms far from 1, saved to `folder`."""
    torch.manual_seed(1)
    draft = Eagle3Draft(dataclasses.replace(PLAIN, **changes))
    for name, weight in draft.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.3, 1.7)
    if not draft.config.full_vocabulary:
        ids = torch.arange(draft.config.draft_vocab_size) * 3
        t2d = torch.zeros(V, dtype=torch.bool)
        t2d[ids] = True
        draft.set_vocab_map(ids - torch.arange(len(ids)), t2d)
    wiring = Wiring(taps=parse_taps(taps), num_target_layers=10, target_hidden_size=H, target_vocab_size=V, **draft_wiring_fields(draft))
    save_draft(folder, draft, wiring, None, "a draft", dtype=None)
    return draft


def exported(tmp_path: Path, target: Path, engine: str, taps: str = "embed,layer:3,layer:7", **changes: Any) -> tuple[dict[str, Any], Any]:
    make_draft(tmp_path / "draft", taps, **changes)
    report = export_for_engine(tmp_path / "draft", *engine.split("=="), target, tmp_path / "out")
    return json.loads((tmp_path / "out" / "config.json").read_text()), report


def test_the_engine_would_feed_the_exported_config_its_taps(tmp_path: Path, target: Path) -> None:
    config, report = exported(tmp_path, target, "vllm==0.33.0")
    fed = resolve(parse_engine("vllm==0.33.0"), TargetFacts.read(target), config)
    assert fed.problem is None
    assert fed.taps == report.wiring.taps == parse_taps("embed,layer:3,layer:7")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 50000.0
    assert any(str(tmp_path / "out") in note for note in report.notes if note.startswith("launch with"))
    assert "embed_tokens.weight" not in load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize("switches", [{}, {"norm_before_fc": True}, {"fc_norm": True}, {"fc_norm": True, **MLA_HEAD}])
def test_a_permuted_export_gives_the_same_fused_state(tmp_path: Path, target: Path, switches: dict[str, Any]) -> None:
    draft = make_draft(tmp_path / "draft", "layer:7,embed,layer:3", **switches)
    report = export_for_engine(tmp_path / "draft", "vllm", "0.33.0", target, tmp_path / "out")
    assert report.wiring.taps == parse_taps("embed,layer:3,layer:7")
    held = load_file(tmp_path / "out" / "model.safetensors")
    one, two, three = torch.randn(3, 1, 5, H).unbind()
    sorted_states, fc = torch.cat([two, three, one], dim=-1), held["fc.weight"]
    if "norm_before_fc" in switches:
        scale = torch.rsqrt(sorted_states.pow(2).mean(-1, keepdim=True) + PLAIN.rms_norm_eps)
        sorted_states = sorted_states * scale * held["input_norm.weight"]
    if "fc_norm" in switches:
        parts = enumerate(sorted_states.chunk(3, dim=-1))
        eps = PLAIN.rms_norm_eps
        normed = [x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * held[f"fc_norm.{i}.weight"] for i, x in parts]
        sorted_states = torch.cat(normed, dim=-1)
    torch.testing.assert_close(sorted_states @ fc.T, draft.fuse(torch.cat([one, two, three], dim=-1)))
    assert any("permuted" in note for note in report.notes)


def test_the_proof_notices_a_norm_that_was_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = make_draft(tmp_path / "draft", "layer:7,embed,layer:3", fc_norm=True)
    assert prove_permutation(draft, (1, 2, 0)) < 1e-5
    right = export.permute_taps

    def forgetful(whole: Eagle3Draft, order: Any) -> Eagle3Draft:
        moved = right(whole, order)
        moved.fc_norm.load_state_dict(whole.fc_norm.state_dict())
        return moved

    monkeypatch.setattr(export, "permute_taps", forgetful)
    with pytest.raises(AssertionError, match="another one"):
        prove_permutation(draft, (1, 2, 0))


def test_what_the_engine_cannot_feed_is_refused_and_nothing_is_written(tmp_path: Path, target: Path) -> None:
    with pytest.raises(UserError, match="cannot feed") as refused:
        exported(tmp_path, target, "sglang==0.5.21")
    assert "tap embed" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_sglang_gets_nested_ids_and_a_null_vocabulary_for_the_targets_head(tmp_path: Path, target: Path) -> None:
    config, _ = exported(tmp_path, target, "sglang==0.5.23", draft_vocab_size=V, lm_head_source="target")
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 3, 7]
    assert config["draft_vocab_size"] is None
    assert not {"lm_head.weight", "d2t"} & set(load_file(tmp_path / "out" / "model.safetensors"))


def test_a_tied_head_is_written_out(tmp_path: Path, target: Path) -> None:
    config, report = exported(tmp_path, target, "vllm==0.33.0", draft_vocab_size=V, own_embedding=True, lm_head_source="embedding")
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(held["lm_head.weight"], held["embed_tokens.weight"])
    assert not config["tie_word_embeddings"]
    assert any("tied" in note for note in report.notes)


def test_mla_and_qwen3_heads_get_the_types_that_vllm_takes_them_by(tmp_path: Path, target: Path) -> None:
    config, _ = exported(tmp_path / "mla", target, "vllm==0.33.0", **MLA_HEAD)
    assert (config["architectures"], config["model_type"]) == (["Eagle3DeepseekV2ForCausalLM"], "deepseek_v2")
    config, _ = exported(tmp_path / "qwen3", target, "vllm==0.33.0", qk_norm=True)
    assert (config["architectures"], config["model_type"]) == (["Eagle3Qwen3ForCausalLM"], "qwen3")


def test_an_old_vllm_finds_an_mla_heads_theta_in_rope_scaling(tmp_path: Path, target: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    config, _ = exported(tmp_path, target, "vllm==0.26.0", rope_parameters=rope, **MLA_HEAD)
    assert config["rope_scaling"]["rope_theta"] == 50000.0


@pytest.mark.parametrize(("engine", "changes"), [("vllm==0.33.0", {}), ("vllm==0.26.0", MLA_HEAD), ("sglang==0.5.23", MLA_HEAD)])
def test_transformers_reads_the_rope_that_the_draft_was_trained_with(
    tmp_path: Path, target: Path, engine: str, changes: dict[str, Any]
) -> None:
    from transformers import AutoConfig

    rope = {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    exported(tmp_path, target, engine, rope_parameters=rope, **changes)
    read = AutoConfig.from_pretrained(tmp_path / "out")
    assert {key: read.rope_parameters.get(key) for key in rope} == rope
    assert read.eagle_config["eagle_aux_hidden_state_layer_ids"]


SAME = {"draft_vocab_size": V, "lm_head_source": "target"}


@pytest.mark.parametrize(
    ("engine", "taps", "changes"),
    [("vllm==0.33.0", "layer:7,embed,layer:3", {}), ("sglang==0.5.23", "embed,layer:3,layer:7", SAME)],
)
def test_an_export_comes_back_with_the_engines_own_order(
    tmp_path: Path, target: Path, engine: str, taps: str, changes: dict[str, Any]
) -> None:
    from eyas.draft.checkpoint import read_draft
    from eyas.formats.importing import import_draft

    _, report = exported(tmp_path, target, engine, taps, norm_output=True, **changes)
    import_draft(tmp_path / "out", tmp_path / "back")
    back = read_draft(tmp_path / "back")
    assert back.wiring == report.wiring
    assert back.draft.config.norm_output
