"""An Eyas draft whose weights another tool cut into shards is the same draft; shards that do not fit together are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.cli.main import main
from eyas.draft.checkpoint import is_draft, read_draft
from eyas.errors import UserError, WiringError
from eyas.files import metadata_of
from eyas.targets.catalog import pull

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "draft"
    pull("smollm2-135m-draft", folder)
    return folder


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """Two shards, every other tensor in each, with the metadata that stood in the whole file."""
    folder = tmp_path / "cut"
    shutil.copytree(whole, folder)
    tensors, metadata = load_file(folder / WEIGHTS), metadata_of(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def test_it_is_read_as_the_same_draft(whole: Path, cut: Path):
    assert is_draft(cut)
    one, other = read_draft(whole).draft.state_dict(), read_draft(cut).draft.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_shown_and_compared_as_a_draft(whole: Path, cut: Path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["wiring", "diff", str(whole), str(cut)])
    assert stop.value.code == 0, capsys.readouterr()
    assert "they match" in capsys.readouterr().out


def test_it_is_not_imported_as_one_of_another_project(cut: Path, tmp_path: Path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["import", str(cut), "--out", str(tmp_path / "again")])
    assert stop.value.code == 2
    assert "is an Eyas draft already" in capsys.readouterr().err


def edit_index(folder: Path, change) -> None:
    value = json.loads((folder / INDEX).read_text())
    change(value["weight_map"])
    (folder / INDEX).write_text(json.dumps(value))


def write_whole_file(folder: Path) -> None:
    save_file({"fc.weight": torch.zeros(1)}, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), r"missing or damaged: .*00002-of-00002"),
        (lambda folder: edit_index(folder, lambda places: places.pop("fc.weight")), r"do not hold what .*index\.json says\s.*fc\.weight"),
        (lambda folder: edit_index(folder, lambda places: places.update(fc_bias="../elsewhere.safetensors")), "outside of the folder"),
        (write_whole_file, "holds its weights twice"),
    ],
)
def test_what_does_not_fit_together_is_refused(cut: Path, damage, words: str):
    damage(cut)
    with pytest.raises(UserError, match=words):
        read_draft(cut)


def test_a_shard_of_another_draft_is_refused(cut: Path):
    """By the hash of the wiring, where the tool kept it."""
    file = cut / "model-00002-of-00002.safetensors"
    metadata = metadata_of(file)
    save_file(load_file(file), file, {**metadata, "eyas_wiring": "0" * 64})
    with pytest.raises(WiringError, match=r"is not the wiring that .*00002-of-00002\.safetensors was written with"):
        read_draft(cut)
