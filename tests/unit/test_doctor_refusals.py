"""What cannot be examined is refused in words: files that hold no figures, and a target given as a draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.doctor import diagnose
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.fix import DIFF, fix
from eyas.errors import UserError

STATIC = Options(depths=("static",))


@pytest.mark.parametrize(
    "text",
    ["http_requests_total 5.0\n", "<html>404</html>", '{"a": 1}', '{"step": 1, "loss": 2.0}\n', "\x89PNG\r\n\x00\x01", ""],
)
def test_metrics_of_something_else_are_refused(text: str, tmp_path: Path):
    (tmp_path / "m").write_text(text)
    with pytest.raises(UserError, match=r"no figures|no Prometheus|not valid JSON"):
        diagnose(Exhibits(metrics=tmp_path / "m"), STATIC)


def test_a_log_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "log").write_text("step 10 | loss 2.0\n")
    with pytest.raises(UserError, match="no line on speculative decoding"):
        diagnose(Exhibits(log=tmp_path / "log"), STATIC)


def test_a_target_is_no_draft(tmp_path: Path):
    tensors = {f"model.layers.{layer}.mlp.up_proj.weight": torch.zeros(4, 4) for layer in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 3}))
    with pytest.raises(UserError, match="is a target, not a draft"):
        diagnose(Exhibits(draft=tmp_path), STATIC)


def test_a_draft_of_which_fc_is_lost_is_still_a_draft(tmp_path: Path):
    save_file({"midlayer.mlp.up_proj.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, "num_attention_heads": 1}))
    assert diagnose(Exhibits(draft=tmp_path), STATIC).verdict in ("fault", "inconclusive")


def test_a_fix_has_no_place_where_something_lies_already(tmp_path: Path):
    """Refused at the start, whatever lies there: an earlier fix too would be refused when all was worked out."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / DIFF).write_text("what an earlier fix changed\n")
    with pytest.raises(UserError, match="exists and is not empty"):
        fix(Exhibits(draft=tmp_path / "draft"), STATIC, tmp_path / "out")
