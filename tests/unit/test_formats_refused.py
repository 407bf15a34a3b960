"""Checkpoints whose tensors or config are of a kind that is not carried, or do not fit each other: refused with the key."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_copy import GOLDEN, change_config, change_tensors, refused
from safetensors.torch import save_file


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "specforge", tmp_path / "copy"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["midlayer.hidden_norm.weight"].fill_(float("nan")), r"midlayer\.hidden_norm\.weight holds NaN"),
        (lambda t: t["lm_head.weight"][3, 4:5].fill_(float("inf")), r"lm_head\.weight holds NaN or infinity"),
        (lambda t: t.pop("midlayer.self_attn.v_proj.weight"), r"missing midlayer.self_attn.v_proj.weight"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
        (lambda t: t.pop("d2t"), "d2t is missing"),
        (lambda t: t.pop("fc.weight"), r"no fc\.weight"),
        (lambda t: t.update(surprise=torch.zeros(3)), r"not read surprise"),
        (lambda t: t.update({"model.fc.weight": t["fc.weight"].clone()}), "model.fc.weight"),
        (lambda t: t.update({"midlayer.mlp.experts.0.up_proj.weight": torch.zeros(3)}), "experts cannot be carried"),
        (lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.zeros(3)}), "several layers cannot be carried"),
        (lambda t: t.update({"norm.weight": torch.zeros(9)}), r"norm\.weight has another shape"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, :-1].clone()}), "no multiple of the target's"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, :16].clone()}), "fc_norm.2.weight"),
        (lambda t: t.update({"norm.weight": torch.zeros(8, dtype=torch.int8)}), "no plain floating-point weight"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(10)), "t2d marks other tokens|out of the target's vocabulary"),
        (lambda t: t.update(d2t=t["d2t"].float()), "no whole numbers"),
        (lambda t: t.update(t2d=~t["t2d"]), "t2d marks other tokens"),
        (lambda t: [t.pop(f"fc_norm.{i}.weight") for i in range(3)], "disagree on fc_norm"),
        (lambda t: t.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.tensor([1.0, 0.5])}), "not the frequencies"),
    ],
)
def test_tensors_that_do_not_fit(copy: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str) -> None:
    change_tensors(copy, change)
    refused(copy, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "several layers"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights"),
        ({"parallel_drafting": True}, "P-EAGLE"),
        ({"mla_use_nope": True}, "without RoPE"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"norm_output": False}, "never normed"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 1]}}, "mrope"),
        ({"rope_scaling": {"rope_type": "nonsense"}}, "no draft can be made"),
        ({"rope_scaling": 3}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-300}}, "frequencies that are no numbers"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "rope_scaling names two kinds"),
        ({"rope_scaling": {"factor": 2.0}}, "scales RoPE without a kind"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": {"type": "linear", "factor": 4.0}},
            r"other numbers[\s\S]*factor = 2.0 and 4.0",
        ),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"num_aux_hidden_states": 5}, "disagree on num_taps"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"use_input_layernorm_in_first_layer": False}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, 12], "layer_ids": [2, 8, 13]}}, "twice, and not the same"),
        ({"eagle_config": {}, "target_layer_ids": [2, 8, 13]}, r"names layers under a key[\s\S]*target_layer_ids"),
        ({"num_hidden_layers": "1"}, "num_hidden_layers must be a positive whole number"),
        ({"rope_theta": -1}, "positive number"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 6.0}}, "two thetas"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"type": "dynamic", "factor": 2}}, "two kinds"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"hidden_size": 10**9}, "multiple of the target's|another shape"),
        ({"intermediate_size": 10**12}, "intermediate_size"),
        ({"hidden_size": True}, "."),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"draft_vocab_size": -3}, "draft_vocab_size"),
        ({"fc_norm": "yes"}, "fc_norm must be true or false"),
        ({"norm_before_fc": True}, "disagree on norm_before_fc"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"eagle_config": 3}, "eagle_config must be an object"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, "12"]}}, "must be a list of layer ids"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, 7]}}, "named twice"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-2, 7, 12]}}, "means no state"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7]}}, "another number of states"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 13]}, "twice, and not the same"),
        ({"architectures": ["GPT2LMHeadModel"], "hidden_act": "nonsense"}, "."),
    ],
)
def test_configs_that_cannot_be_carried(copy: Path, changes: dict[str, Any], message: str) -> None:
    change_config(copy, **changes)
    refused(copy, message)


@pytest.mark.parametrize("key", ["quantization_config", "parallel_drafting"])
def test_what_speculators_says_beside_the_layer(tmp_path: Path, key: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / "speculators", tmp_path / "copy"))
    change_config(folder, **{key: {"quant_method": "compressed-tensors"} if key == "quantization_config" else True})
    refused(folder, key)


def test_another_kind_of_speculator(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "speculators", tmp_path / "copy"))
    change_config(folder, speculators_model_type="dflash")
    refused(folder, "no EAGLE-3 draft")
    change_config(folder, speculators_model_type="eagle3", transformer_layer_config=...)
    refused(folder, "transformer_layer_config is missing")


def test_folders_of_no_known_project(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["BertModel"]}')
    save_file({"embeddings.weight": torch.zeros(3)}, tmp_path / "model" / "model.safetensors")
    refused(tmp_path / "model", "cannot be told")
    refused(tmp_path / "model", "no such format", source="onnx")
    refused(tmp_path / "model", "no such tensors|no fc.weight", source="eagle")
