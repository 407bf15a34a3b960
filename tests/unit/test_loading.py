"""What is wrong with a target's folder, a hub id or a device is said in words, whatever transformers makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import UserError
from eyas.targets import loading
from eyas.targets.loading import load_config, load_target, resolve_device

CPU = torch.device("cpu")
CONFIGS: dict[str, dict[str, object]] = {
    "text": {"num_hidden_layers": "four"},
    "zero": {"hidden_size": 0},
    "negative": {"num_hidden_layers": -1},
    "null": {"vocab_size": None},
    "unknown model": {"model_type": "nonsense"},
    "not a decoder": {"model_type": "bert"},
    "other sizes": {"hidden_size": 32},
    "fewer layers": {"num_hidden_layers": 3},
    "activation": {"hidden_act": "nonsense"},
    "rope": {"rope_parameters": "x"},
    "no positions": {"max_position_embeddings": 0},
}


@pytest.fixture
def folder(tmp_path: Path, tiny_targets) -> Path:
    return Path(shutil.copytree(tiny_targets("llama"), tmp_path / "target"))


def load(folder: Path) -> None:
    load_target(str(folder), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("edit", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_makes_no_model_is_refused(folder: Path, edit: dict[str, object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | edit))
    with pytest.raises(UserError):
        load(folder)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, weight: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = weight
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="not finite") as caught:
        load(folder)
    assert "norm.weight" in str(caught.value.got)


def test_a_pickled_checkpoint_is_not_read(folder: Path) -> None:
    """Not even beside a safetensors file of something else."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "adapter.safetensors")
    with pytest.raises(UserError, match="cannot load the target's weights"):
        load(folder)


@pytest.mark.parametrize(
    "index", ["{}", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "gone.safetensors"}}']
)
def test_an_index_that_names_no_files_is_refused(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError):
        load(folder)


@pytest.mark.parametrize("name", ["cpu:x", "cuda:x", "gpu", ""])
def test_a_device_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="--device"):
        resolve_device(name)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def silent(url: str, **options: object) -> None:
        asked.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr(loading, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "get_hf_file_metadata", silent)
    with pytest.raises(UserError, match="the hub does not answer") as caught:
        load_config("nobody/nothing")
    assert caught.value.got == "no route"
    assert len(asked) == 1
