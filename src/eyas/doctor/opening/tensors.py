"""The draft's tensors, as far as they can be read, by Eyas's names."""

from __future__ import annotations

import torch
from safetensors import SafetensorError, safe_open

from eyas.doctor.opening.draft import DraftFiles, eyas_name
from eyas.errors import UserError


def draft_tensors(files: DraftFiles) -> dict[str, torch.Tensor]:
    """Damaged files give what they have; pickled ones are read as tensors alone."""
    found: dict[str, torch.Tensor] = {}
    for name, key in files.keys.items():
        path = files.folder / files.tensors[name].file
        try:
            with safe_open(path, framework="pt") as opened:
                found[name] = opened.get_tensor(key)
        except (OSError, SafetensorError, RuntimeError, ValueError, TypeError):
            continue
    return found or pickled_tensors(files)


def pickled_tensors(files: DraftFiles) -> dict[str, torch.Tensor]:
    from eyas.formats.safe import load_pickled

    found: dict[str, torch.Tensor] = {}
    for name in files.weights.pickled:
        if not name.startswith("pytorch_model"):
            continue
        try:
            value = load_pickled(files.folder / name)
        except UserError:
            continue
        if isinstance(value, dict):
            for key, tensor in value.items():
                plain = eyas_name(str(key))
                if plain is not None and isinstance(tensor, torch.Tensor):
                    found[plain] = tensor
    return found
