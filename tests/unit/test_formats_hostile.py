"""Checkpoints whose files are damaged, hostile or something else: refused with the file, never run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_copy import GOLDEN, TAPS, refused
from safetensors.torch import load_file, save_file

from eyas.formats import import_draft


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "specforge", tmp_path / "copy"))


def test_a_header_of_200_gigabytes(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 200 << 30) + b"{}")
    refused(copy, r"model\.safetensors is not a safetensors file[\s\S]*214748364800")


@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_a_file_cut_short(copy: Path, size: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(copy, r"model\.safetensors is (damaged|not a safetensors file)")


def test_a_header_that_is_no_json(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 16) + b"{not json at all" + b"0" * 64)
    refused(copy, r"model\.safetensors is damaged")


def test_a_tensor_that_lies_outside_of_its_file(copy: Path) -> None:
    header = json.dumps({"fc.weight": {"dtype": "F32", "shape": [8, 24], "data_offsets": [0, 768]}}).encode()
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0" * 8)
    refused(copy, r"model\.safetensors is damaged")


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 3, "notes.txt", "a\\b.bin"])
def test_an_index_that_leads_out_of_the_folder(copy: Path, place: object) -> None:
    (copy.parent / "elsewhere.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": place}}))
    refused(copy, r"index\.json: fc\.weight is said to lie outside")


def test_shards_are_read_and_must_hold_what_the_index_says(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, copy / file)
    index = {name: file for file, part in halves.items() for name in part}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert import_draft(copy, copy.with_name("good")).wiring.taps == TAPS
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | {"fc.bias": "model-2.safetensors"}}))
    refused(copy, r"model-2\.safetensors does not hold what the index says[\s\S]*fc\.bias")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (copy / "model-2.safetensors").unlink()
    refused(copy, r"weights are missing: .*model-2")


class Bomb:
    """Runs a command when it is unpickled by a reader that is not careful."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch " + os.environ["EYAS_TEST_MARK"],)


@pytest.mark.parametrize("save", [lambda value, path: torch.save(value, path), lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    monkeypatch.setenv("EYAS_TEST_MARK", str(tmp_path / "mark"))
    save({"fc.weight": Bomb()}, folder / "pytorch_model.bin")
    refused(folder, r"pytorch_model\.bin cannot be read as tensors alone", taps=TAPS)
    assert not (tmp_path / "mark").exists()


class Swollen:
    """Unpickled as a tensor that is larger than the storage that it is made of."""

    def __reduce__(self) -> tuple[Any, ...]:
        storage = torch.storage.TypedStorage(wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, 0, (1 << 20,), (1,), False, OrderedDict())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"fc.weight": torch.zeros(1).expand(10**12)}, "claims more numbers than the file holds"),
        ({"fc.weight": Swollen()}, "not resizable|claims more numbers than the file holds"),
        ({"fc.weight": "a text"}, "is not a plain tensor"),
        ({3: torch.zeros(1)}, "is not a plain tensor"),
        ({"fc.weight": torch.zeros(2, 2).to_sparse()}, "is not a plain tensor|cannot be read"),
        ([torch.zeros(1)], "no table of tensors"),
    ],
    ids=["one number for many", "larger than its storage", "text", "number as key", "sparse", "list"],
)
def test_a_pickle_of_other_things(tmp_path: Path, value: object, message: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    torch.save(value, folder / "pytorch_model.bin")
    refused(folder, message, taps=TAPS)


def test_an_archive_that_grows_when_it_is_opened(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/99", b"\0" * (4 << 20))
    refused(folder, r"pytorch_model\.bin claims to hold more than it is long", taps=TAPS)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
def test_something_else_in_the_place_of_a_file(copy: Path, name: str, kind: str) -> None:
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    elif kind == "folder":
        (copy / name).mkdir()
    else:
        (copy / name).symlink_to("/dev/zero" if kind == "device" else name)
    refused(copy, str(name).replace(".", r"\.") + "|no weights that can be told")


def test_a_key_that_is_there_twice(copy: Path) -> None:
    path = copy / "config.json"
    path.write_text(path.read_text().replace("{", '{"hidden_size": 8,', 1))
    refused(copy, r"config\.json[\s\S]*given twice: hidden_size")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "\\ud800"}', "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "\x00"])
def test_a_config_that_is_none(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    refused(copy, r"config\.json")


def test_a_config_of_absurd_size(copy: Path) -> None:
    with open(copy / "config.json", "wb") as stream:
        stream.truncate(1 << 30)
    refused(copy, "too large to be one")


def test_a_folder_without_weights_or_with_several(copy: Path) -> None:
    shutil.copy(copy / "model.safetensors", copy / "a.safetensors")
    shutil.move(copy / "model.safetensors", copy / "b.safetensors")
    refused(copy, "no weights that can be told")
    (copy / "a.safetensors").unlink()
    assert import_draft(copy, copy.with_name("good")).wiring.taps == TAPS
    refused(copy / "config.json", "not a folder")
