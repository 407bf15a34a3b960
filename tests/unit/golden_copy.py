"""Copies of the golden checkpoints, changed as a test likes, and the refusal that must follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import UserError
from eyas.formats import import_draft
from eyas.taps import parse_taps

GOLDEN = Path(__file__).parent.parent / "roundtrip" / "golden"
TAPS = parse_taps("layer:1,layer:7,layer:12")


def refused(folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(UserError, match=match):
        import_draft(folder, folder.with_name("out"), **options)
    assert not folder.with_name("out").exists(), "nothing half-written"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
