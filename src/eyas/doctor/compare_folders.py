"""What differs between two drafts' folders: JSON files line by line, tensors by name and by how much."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import torch

from eyas.doctor.opening.draft import open_draft
from eyas.doctor.opening.tensors import draft_tensors
from eyas.files import JSON_ERRORS

_FILES = ("config.json", "wiring.json", "eyas_wiring.json")


def compare_folders(old: Path, new: Path) -> str:
    """A unified diff of the configs, and a line for each tensor that is not the same. Empty if nothing differs."""
    lines = [line for name in _FILES for line in _text_diff(old / name, new / name, name)]
    return "\n".join([*lines, *_tensor_diff(old, new)]) + ("\n" if lines or _tensor_diff(old, new) else "")


def _text_diff(old: Path, new: Path, name: str) -> list[str]:
    before, after = _pretty(old), _pretty(new)
    return list(difflib.unified_diff(before, after, f"{old.parent.name}/{name}", f"{new.parent.name}/{name}", lineterm="", n=1))


def _pretty(path: Path) -> list[str]:
    """Sorted and indented, so that a changed order of keys is no difference; as it is where that is no JSON."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
    except JSON_ERRORS:
        return text.splitlines()


def _tensor_diff(old: Path, new: Path) -> list[str]:
    before, after = (draft_tensors(open_draft(folder)) for folder in (old, new))
    lines = [f"- tensor {name} {list(before[name].shape)}" for name in sorted(set(before) - set(after))]
    lines += [f"+ tensor {name} {list(after[name].shape)}" for name in sorted(set(after) - set(before))]
    for name in sorted(set(before) & set(after)):
        words = _difference(before[name], after[name])
        lines += [f"! tensor {name}: {words}"] if words else []
    return lines


def _difference(old: torch.Tensor, new: torch.Tensor) -> str:
    if old.shape != new.shape:
        return f"shape {list(old.shape)} became {list(new.shape)}"
    dtype = f"{old.dtype} became {new.dtype}; " if old.dtype != new.dtype else ""
    differs = ~(
        (old.double() == new.double()) | (old.isnan() & new.isnan() if old.is_floating_point() else torch.zeros_like(old, dtype=torch.bool))
    )
    count = int(differs.sum())
    if count == 0:
        return dtype.rstrip("; ")
    largest = float((new.double() - old.double()).abs().nan_to_num(float("inf")).max())
    return f"{dtype}{count} of {old.numel()} numbers differ, by at most {largest:.4g}"
