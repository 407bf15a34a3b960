"""A target too large to load: from a dump, the draft and three of the target's tensors the doctor says the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eyas.doctor import diagnose
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis
from seeded import dumps
from seeded.behaviour import permuted
from seeded.sets import Set

OPTIONS = Options(depths=("static", "weights", "replay"), rows=1200)


def without_layers(s: Set) -> Set:
    """The target in two shards, of which the one with the layers is not there."""
    folder = s.work / "hollow"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(s.target, folder)
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    kept = {name: tensor for name, tensor in held.items() if ".layers." not in name}
    save_file(kept, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
    places = {name: f"model-0000{2 if name in kept else 1}-of-00002.safetensors" for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return s.but(target=folder, given=("target", "draft", "dump"))


def examined(s: Set) -> Diagnosis:
    return diagnose(s.exhibits(), OPTIONS)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_healthy_set_is_healthy_without_the_targets_layers(family: str, set_of):
    found = examined(without_layers(set_of(family)))
    assert [finding.code for finding in found.findings] == []
    assert found.verdict == "healthy"
    untested = {item.hypothesis.code: item.outcome.reason for item in found.tested if "layers" in item.hypothesis.needs}
    assert "layers" in untested["target-changed"]


def test_columns_in_another_order_are_found_without_the_targets_layers(set_of):
    whole = set_of("llama")
    found = examined(without_layers(permuted(2, 1, 0)(whole)))
    assert found.findings[0].code == "slot-order"
    assert found.findings[0].verified
    healthy = examined(without_layers(whole)).measured["accuracy"]
    assert found.measured["accuracy_as_given"] < healthy - 0.05
    assert found.measured["accuracy"] == pytest.approx(healthy, abs=1e-6), "the mend gives back all of it"


def test_a_missing_final_norm_is_found_without_the_targets_layers(set_of):
    """Rows that left an RMS norm are of one length, once its weights are taken off; whose tokens they give says nothing here."""
    unnormed = dumps.teacher(dumps.teacher_of(lambda layers: layers, norm=False))
    found = examined(without_layers(unnormed(set_of("llama"))))
    assert found.findings[0].code == "teacher-norm"


def test_no_traceback_for_a_target_of_which_nothing_is_left(set_of, tmp_path: Path):
    s = set_of("llama")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(s.target / "config.json", bare)
    found = examined(s.but(target=bare, given=("target", "draft", "dump")))
    assert not found.notes or all("broke" not in note for note in found.notes)


def test_a_head_that_the_family_ties_is_not_missed(tiny_targets, tmp_path: Path):
    """Configs as published leave out what their family does anyway, and Gemma's ties lm_head to the embedding."""
    folder = shutil.copytree(tiny_targets("gemma3_text"), tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    static = Options(depths=("static",))
    for said, codes in (({}, []), ({"tie_word_embeddings": False}, ["target-head"])):
        kept = {name: value for name, value in config.items() if name != "tie_word_embeddings"}
        (folder / "config.json").write_text(json.dumps(kept | said))
        assert [finding.code for finding in diagnose(Exhibits(target=str(folder)), static).findings] == codes
