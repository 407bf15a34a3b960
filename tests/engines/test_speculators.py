"""The real speculators library loads what `eyas export --to speculators` writes, and holds the same draft afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_runs import run_engine
from safetensors.torch import load_file

from eyas.draft.checkpoint import read_draft
from eyas.formats import export_draft

pytestmark = pytest.mark.timeout(600)


def test_the_library_holds_the_same_tensors(shipped: Path, smollm2: Path, tmp_path: Path) -> None:
    report = export_draft(shipped, "speculators", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(smollm2)  # the library looks the target up when it loads
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    run_engine("speculators_worker.py", tmp_path / "out", tmp_path / "seen")
    seen = load_file(tmp_path / "seen" / "tensors.safetensors")
    written = load_file(tmp_path / "out" / "model.safetensors")
    loaded = read_draft(shipped)
    for name, tensor in written.items():
        assert torch.equal(seen[name].to(tensor.dtype), tensor), name
    ours = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in loaded.draft.state_dict().items()}
    for name, tensor in ours.items():
        assert torch.equal(seen[name].to(tensor.dtype), tensor), name

    config = json.loads((tmp_path / "seen" / "config.json").read_text())
    assert config["class"] == "Eagle3DraftModel"
    assert config["draft_vocab_size"] == loaded.draft.config.draft_vocab_size
    assert config["eagle_aux_hidden_state_layer_ids"] == [tap.boundary for tap in report.wiring.taps]
    for switch in ("norm_before_residual", "norm_before_fc"):
        assert config[switch] == getattr(loaded.draft.config, switch), switch
