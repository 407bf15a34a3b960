"""Checkpoints that can be carried if something is assumed or left out: taken, and said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from golden_copy import GOLDEN, TAPS, change_config, change_tensors
from safetensors.torch import load_file

from eyas.formats import import_draft


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "specforge", tmp_path / "copy"))


def test_maps_of_other_integers_and_frequencies_that_fit_are_taken_and_said(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update(d2t=tensors["d2t"].int(), t2d=tensors["t2d"].to(torch.uint8))
        tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.tensor([1.0, 1e-3])

    change_tensors(copy, change)
    notes = "\n".join(import_draft(copy, copy.with_name("good")).notes)
    assert "d2t was stored as torch.int32" in notes
    assert "inv_freq was left out" in notes


def test_a_missing_head_of_a_full_vocabulary_is_the_targets_and_said(copy: Path) -> None:
    change_config(copy, draft_vocab_size=24)
    change_tensors(copy, lambda t: [t.pop(name) for name in ("lm_head.weight", "d2t", "t2d")])
    report = import_draft(copy, copy.with_name("good"))
    assert report.wiring.lm_head_source == "target"
    assert any("lm_head_source = target" in line for line in report.assumed)


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module.draft_model."])
@pytest.mark.parametrize("head", [True, False])
def test_a_wrappers_prefix_is_taken_off_and_said(copy: Path, prefix: str, head: bool) -> None:
    expected = load_file(copy / "model.safetensors")["fc.weight"]

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in sorted(tensors):
            if head or name not in ("lm_head.weight", "d2t", "t2d"):
                tensors[prefix + name] = tensors.pop(name)

    change_tensors(copy, wrap)
    report = import_draft(copy, copy.with_name("good"))
    assert report.source == "specforge"
    assert any(f"prefix {prefix}" in note for note in report.notes)
    assert torch.equal(load_file(copy.with_name("good") / "model.safetensors")["fc.weight"], expected)


def test_torchspecs_meaning_is_seen_behind_a_prefix(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "torchspec", tmp_path / "copy"))
    change_tensors(folder, lambda t: [t.update({"draft_model." + name: t.pop(name)}) for name in sorted(t)])
    assert import_draft(folder, tmp_path / "good").wiring.taps == TAPS


def test_ids_for_vllm_alone_are_boundaries_and_said(copy: Path) -> None:
    change_config(copy, eagle_config={"layer_ids": [2, 8, 13]})
    report = import_draft(copy, copy.with_name("good"))
    assert report.wiring.taps == TAPS
    assert any("vLLM alone reads eagle_config.layer_ids" in line for line in report.assumed)


def test_what_is_beside_and_not_read_is_said(copy: Path) -> None:
    change_config(copy, target_layer_ids=[3, 9, 14], attention_bias=True)
    torch.save({}, copy / "pytorch_model.bin")
    notes = "\n".join(import_draft(copy, copy.with_name("good")).notes)
    assert "target_layer_ids = [3, 9, 14] of config.json was not read" in notes
    assert "pytorch_model.bin was not read, but model.safetensors" in notes
    assert "attention_bias is True" in notes and "the weights have none" in notes


def test_a_map_that_could_hold_ids_is_doubted_where_nothing_tells(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "modelopt", tmp_path / "copy"))
    assert not any("d2t" in line for line in import_draft(folder, tmp_path / "plain").assumed)
    change_config(folder, vocab_size=48)
    change_tensors(folder, lambda t: t.update(d2t=t["d2t"] + torch.arange(10)))
    assert any("d2t = offsets" in line for line in import_draft(folder, tmp_path / "doubted").assumed)
