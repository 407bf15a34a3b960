"""One checkpoint a project, written by hand with that project's own keys (golden/make.py), read as that project means it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.draft.checkpoint import read_draft
from eyas.errors import UserError
from eyas.formats import export_draft, import_draft
from eyas.formats.base import Source
from eyas.formats.registry import FORMATS
from eyas.taps import parse_taps

GOLDEN = Path(__file__).parent / "golden"
TAPS = parse_taps("layer:1,layer:7,layer:12")  # what all of them read
NEEDS_TAPS = ("eagle", "automodel")
# The keys of the plainest draft, as each project has them; every export must give exactly these.
LAYER = {
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"{name}.weight" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
}
EAGLE_KEYS = {*("midlayer." + name for name in LAYER), "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
PLAIN_KEYS = {*("layers.0." + name for name in LAYER), "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
KEYS = {
    "eagle": EAGLE_KEYS,
    "specforge": EAGLE_KEYS,
    "torchspec": EAGLE_KEYS,
    "angelslim": EAGLE_KEYS,
    "speculators": PLAIN_KEYS,
    "modelopt": PLAIN_KEYS - {"t2d"},
    "automodel": {*("model.layers.0." + name for name in LAYER), "model.fc.weight", "model.norm.weight", "lm_head.weight", "d2t", "t2d"},
}


def read(name: str, out: Path):
    return import_draft(GOLDEN / name, out, taps=TAPS if name in NEEDS_TAPS else None)


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_is_told_and_read_whole(name: str, tmp_path: Path) -> None:
    report = read(name, tmp_path / "draft")
    assert report.source == name
    assert report.wiring.taps == TAPS
    assert report.wiring.loss_mask_rule is None
    draft = read_draft(tmp_path / "draft").draft
    ids = draft.to_target(torch.arange(10))
    assert ids.tolist() == [0, 2, 3, 5, 8, 9, 13, 17, 20, 23]
    numbers = torch.cat([tensor.flatten() for key, tensor in draft.state_dict().items() if key not in ("d2t", "t2d")])
    assert len(numbers.unique()) == len(numbers), "each number of the file once: none lost, none read twice"
    assert sum(path.stat().st_size for path in (GOLDEN / name).iterdir()) < 50_000


@pytest.mark.parametrize("name", FORMATS)
def test_without_ids_the_states_are_asked_for(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    config = json.loads(path.read_text())
    for key in ("eagle_config", "eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids"):
        config.pop(key, None)
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="does not say which states"):
        import_draft(tmp_path / "copy", tmp_path / "draft")
    assert import_draft(tmp_path / "copy", tmp_path / "draft", taps=TAPS).wiring.taps == TAPS


def test_what_the_configs_do_not_say_is_said_to_be_assumed(tmp_path: Path) -> None:
    said = {name: read(name, tmp_path / name) for name in FORMATS}
    for name, report in said.items():
        assert name in NEEDS_TAPS or any(line.startswith("taps = ") for line in report.assumed)
    assert any("10000" in line and "rope_parameters" in line for line in said["eagle"].assumed)
    assert any("engines turn by" in line and "1e+06" in line for line in said["angelslim"].assumed)
    assert any("head_dim = 4" in line for line in said["eagle"].assumed)
    assert any("SpecForge 0.2" in line for line in said["specforge"].assumed)
    assert any("adds one" in line for line in said["torchspec"].assumed)
    assert any("gives its scaled RoPE no theta" in line for line in said["torchspec"].notes)
    assert any("mask_hidden was left out" in line for line in said["automodel"].notes)


def test_switches_and_sizes_are_read_as_each_project_means_them(tmp_path: Path) -> None:
    configs = {name: read_draft((tmp_path / name, read(name, tmp_path / name))[0]).draft.config for name in FORMATS}
    assert configs["specforge"].fc_norm
    assert not configs["specforge"].norm_output
    assert configs["speculators"].norm_before_fc
    assert configs["speculators"].norm_before_residual
    assert configs["speculators"].norm_output
    assert configs["speculators"].qk_norm
    assert configs["speculators"].own_embedding
    assert configs["automodel"].norm_output
    assert configs["angelslim"].rope_parameters["rope_theta"] == 10000.0
    assert configs["modelopt"].rope_parameters["rope_type"] == "llama3"
    mla = configs["torchspec"].mla
    assert mla is not None
    assert (mla.q_lora_rank, mla.kv_lora_rank, mla.v_head_dim, mla.rope_interleaved) == (5, 7, 6, True)
    assert mla.softmax_factor == pytest.approx((0.1 * 1.3862943611 + 1) ** 2)
    assert not configs["modelopt"].own_embedding


@pytest.mark.parametrize("name", FORMATS)
def test_written_again_it_has_the_keys_of_the_project(name: str, tmp_path: Path) -> None:
    read("eagle", tmp_path / "draft")  # the plainest of them
    export_draft(tmp_path / "draft", name, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == KEYS[name]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    golden = json.loads((GOLDEN / name / "config.json").read_text())
    assert config["architectures"] == golden["architectures"] if name != "torchspec" else ["LlamaForCausalLMEagle3"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_golden_tensors_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    read(name, tmp_path / "draft")
    export_draft(tmp_path / "draft", name, tmp_path / "out")
    mine = load_file(tmp_path / "out" / "model.safetensors")
    golden = GOLDEN / name / "model.safetensors"
    theirs = load_file(golden) if golden.is_file() else torch.load(GOLDEN / name / "pytorch_model.bin", weights_only=True)
    theirs.pop("model.mask_hidden", None)
    if name == "torchspec":  # --vllm keys in, native keys out
        theirs = {key.replace("layers.0.", "midlayer."): tensor for key, tensor in theirs.items()}
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) and mine[key].dtype == theirs[key].dtype for key in theirs)


def test_one_key_has_two_meanings(tmp_path: Path) -> None:
    """The same ids in the same key: outputs for SpecForge, what enters a layer for speculators, or what the user says."""
    specforge = import_draft(GOLDEN / "specforge", tmp_path / "a")
    as_boundaries = import_draft(GOLDEN / "specforge", tmp_path / "b", convention="boundary")
    assert specforge.wiring.taps == TAPS
    assert as_boundaries.wiring.taps == parse_taps("layer:0,layer:6,layer:11")
    assert any("--convention" in line for line in as_boundaries.assumed)
    other = import_draft(GOLDEN / "specforge", tmp_path / "c", taps=parse_taps("embed,layer:2,layer:9"))
    assert other.wiring.taps == parse_taps("embed,layer:2,layer:9")
    assert any("--taps" in line and "layer:7" in line for line in other.notes)
    with pytest.raises(UserError, match="--convention"):
        import_draft(GOLDEN / "specforge", tmp_path / "d", convention="sideways")


def test_ids_that_no_key_of_the_format_explains_are_asked_about(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "eagle", tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eagle_aux_hidden_state_layer_ids": [2, 8, 13]}))
    with pytest.raises(UserError, match="what they mean is not known"):
        import_draft(tmp_path / "copy", tmp_path / "draft")
    assert import_draft(tmp_path / "copy", tmp_path / "draft", convention="boundary").wiring.taps == TAPS


def test_default_states_of_each_project() -> None:
    """All but speculators 0.3 and 0.4 mean the same three states."""
    for fmt in FORMATS.values():
        assert fmt.default_taps({}, 32) == (2, 16, 29)
    assert FORMATS["speculators"].default_taps({"speculators_version": "0.4.0.1"}, 32) == (3, 17, 30)
    assert FORMATS["speculators"].default_taps({"speculators_version": "0.5.0"}, 32) == (2, 16, 29)
    assert FORMATS["speculators"].default_taps({"speculators_version": "0.2.0"}, 32) == (2, 16, 29)  # it only converted then


def test_torchspec_ids_shift_only_where_its_converter_shifts_them() -> None:
    meaning = FORMATS["torchspec"].meaning_here
    assert meaning(Source({"model_type": "kimi_k2"}, {}, "layers.0.", "")) is not None
    assert meaning(Source({"model_type": "kimi_k2"}, {}, "midlayer.", "")) is None
    assert meaning(Source({"model_type": "llama"}, {}, "layers.0.", "")) is None


def test_a_map_in_a_side_file_is_found_and_one_that_is_nowhere_is_missed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "automodel", tmp_path / "copy")
    path = tmp_path / "copy" / "model.safetensors"
    tensors = load_file(path)
    ids = tensors.pop("d2t") + torch.arange(10)
    del tensors["t2d"]
    save_file(tensors, path)
    with pytest.raises(UserError, match="d2t is missing"):
        import_draft(tmp_path / "copy", tmp_path / "draft", taps=TAPS)
    torch.save({"selected_token_ids": ids, "target_vocab_size": 24}, tmp_path / "copy" / "eagle_meta.pt")
    report = import_draft(tmp_path / "copy", tmp_path / "draft", taps=TAPS)
    assert any("eagle_meta.pt" in line for line in report.notes)
    assert torch.equal(read_draft(tmp_path / "draft").draft.to_target(torch.arange(10)), ids)
