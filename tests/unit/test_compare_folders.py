"""What differs between two drafts' folders is told line by line and tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from eyas.doctor.compare_folders import compare_folders


def folder(path: Path, config: dict[str, object], **tensors: torch.Tensor) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    names = {"fc": "fc.weight", "head": "lm_head.weight", "norm": "norm.weight"}
    save_file({names.get(name, name): tensor for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


def test_equal_folders_differ_in_nothing(tmp_path):
    one = folder(tmp_path / "one", {"a": 1, "b": 2}, fc=torch.ones(2, 6), norm=torch.full((2,), float("nan")))
    other = folder(tmp_path / "other", {"b": 2, "a": 1}, fc=torch.ones(2, 6), norm=torch.full((2,), float("nan")))
    assert compare_folders(one, other) == ""


def test_every_difference_is_told(tmp_path):
    one = folder(tmp_path / "one", {"a": 1, "b": 2}, fc=torch.ones(2, 6), norm=torch.ones(2), d2t=torch.arange(3))
    changed = torch.ones(2, 6)
    changed[0, 0] = 3.5
    other = folder(
        tmp_path / "other", {"a": 1, "b": 3}, fc=changed, norm=torch.ones(2).bfloat16(), head=torch.ones(3, 2), d2t=torch.zeros(4)
    )
    lines = compare_folders(one, other).splitlines()
    assert '-  "b": 2' in lines and '+  "b": 3' in lines
    assert "! tensor fc.weight: 1 of 12 numbers differ, by at most 2.5" in lines
    assert "+ tensor lm_head.weight [3, 2]" in lines
    assert "! tensor norm.weight: torch.float32 became torch.bfloat16" in lines
    assert "! tensor d2t: shape [3] became [4]" in lines
    assert len([line for line in lines if line.startswith(("!", "+ tensor", "- tensor"))]) == 4


def test_a_file_that_is_no_json_is_compared_as_text(tmp_path):
    one = folder(tmp_path / "one", {}, fc=torch.ones(2, 6))
    (one / "config.json").write_text('{"a": 1,')
    other = folder(tmp_path / "other", {"a": 1}, fc=torch.ones(2, 6))
    assert '-{"a": 1,' in compare_folders(one, other)
