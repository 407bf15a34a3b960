"""What comes in computes what its project computes: every golden checkpoint beside a forward pass in plain arithmetic."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_head import Head
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from eyas.draft.checkpoint import read_draft
from eyas.formats import import_draft
from eyas.taps import parse_taps

GOLDEN = Path(__file__).parent / "golden"
TAPS = parse_taps("layer:1,layer:7,layer:12")
ROWS = 6
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"type": "linear", "factor": 2.0}
# What each project's code does with its golden checkpoint (README of the formats); theta as that code takes it.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "eagle": ("eagle", "midlayer.", {}, {}),
    "eagle, scaled": ("eagle", "midlayer.", {"rope_theta": 5e5, "rope_scaling": LINEAR}, {"scaling": LINEAR}),
    "eagle, scaled, new keys": ("eagle", "midlayer.", {"rope_parameters": {**LINEAR, "rope_theta": 5e5}}, {"scaling": LINEAR}),
    "specforge": ("specforge", "midlayer.", {}, {"theta": 1e6}),
    "speculators": ("speculators", "layers.0.", {}, {"theta": 1e6, "norm_before_residual": True, "norm_output": True}),
    "modelopt": ("modelopt", "layers.0.", {}, {"theta": 5e5, "scaling": LLAMA3}),
    "torchspec": (
        "torchspec",
        "layers.0.",
        {},
        {
            "theta": 5e4,
            "scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            "mla": {"nope": 4, "latent": 7},
            "rope_dim": 2,
            "softmax_factor": (0.1 * math.log(4.0) + 1.0) ** 2,
        },
    ),
    "automodel": ("automodel", "layers.0.", {}, {"norm_output": True}),
    "angelslim": ("angelslim", "midlayer.", {}, {}),
}


def with_random_weights(folder: Path, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The golden numbers rise evenly, which hides much; shapes and keys stay."""
    pickled = folder / "pytorch_model.bin"
    tensors = torch.load(pickled, weights_only=True) if pickled.exists() else load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = 0.3 * torch.randn(tensor.shape, generator=generator) + (1.0 if tensor.ndim == 1 else 0.0)
    pickled.unlink(missing_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("case", CASES)
def test_an_imported_draft_computes_what_its_project_does(case: str, tmp_path: Path) -> None:
    name, prefix, changes, does = CASES[case]
    folder, generator = Path(shutil.copytree(GOLDEN / name, tmp_path / "theirs")), torch.Generator().manual_seed(1)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {key.removeprefix("model.").removeprefix(prefix): tensor for key, tensor in with_random_weights(folder, generator).items()}
    import_draft(folder, tmp_path / "ours", source=name, taps=TAPS)

    embedding = tensors.get("embed_tokens.weight", torch.randn(24, 8, generator=generator))
    states, tokens = torch.randn(ROWS, 24, generator=generator), torch.randint(24, (ROWS + 1,), generator=generator)
    head = Head(**{"tensors": tensors, "num_heads": 2, "rope_dim": 4} | does)
    expected = head.two_steps(states, embedding[tokens[:-1]], embedding[tokens[-1]])

    draft, cache = read_draft(tmp_path / "ours").draft, DynamicCache()
    if not draft.config.own_embedding:
        draft.use_embedding(lambda ids: embedding[ids])
    mask = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()[None, None]
    fed_back = draft(tokens[None, :-1], draft.fuse(states[None]), torch.arange(ROWS)[None], cache, mask)
    later = draft(tokens[None, -1:], fed_back[:, -1:], torch.tensor([[ROWS]]), cache, None)
    for wanted, got in zip(expected, (draft.logits(fed_back)[0], draft.logits(later)[0]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
