"""eyas import and eyas export: JSON for programs, lines for people, exit status 2 for what cannot be carried."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from eyas.cli.main import main
from eyas.draft.checkpoint import draft_wiring_fields, load_draft, save_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.formats import export_draft, import_draft
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.wiring import Wiring

GOLDEN = Path(__file__).parent.parent / "roundtrip" / "golden"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    output = capsys.readouterr()
    return int(left.value.code or 0), output.out, output.err


def test_in_and_out_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(["import", str(GOLDEN / "specforge"), "--out", str(tmp_path / "draft"), "--json"], capsys)
    assert status == 0
    report = json.loads(out)
    assert report["from"] == "specforge"
    assert report["wiring"]["taps"] == ["layer:1", "layer:7", "layer:12"]
    assert "model.safetensors" in report["written"]
    assert any(line.startswith("taps = ") for line in report["assumed"])
    status, out, _ = run(["export", str(tmp_path / "draft"), "--to", "speculators", "--out", str(tmp_path / "out"), "--json"], capsys)
    assert status == 0
    assert {"written", "wiring", "assumed"} <= set(json.loads(out))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 8, 13]


def test_an_export_shows_the_wiring_that_lies_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_draft(GOLDEN / "specforge", tmp_path / "draft")
    export_draft(tmp_path / "draft", "automodel", tmp_path / "out")
    status, out, _ = run(["wiring", "show", str(tmp_path / "out"), "--json"], capsys)
    assert (status, json.loads(out)["kind"]) == (0, "export")
    assert json.loads(out)["wiring"]["taps"] == ["layer:1", "layer:7", "layer:12"]
    assert run(["wiring", "diff", str(tmp_path / "draft"), str(tmp_path / "out")], capsys)[0] == 0
    status, _, err = run(["wiring", "show", str(GOLDEN / "specforge")], capsys)
    assert status == 2
    assert "eyas import" in err


def test_lines_for_people_and_the_users_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", str(GOLDEN / "eagle"), "--out", str(tmp_path / "draft")]
    status, _, err = run(command, capsys)
    assert status == 2
    assert "does not say which states" in err
    assert "--taps" in err
    status, out, _ = run([*command, "--from", "eagle", "--taps", "layer:1,layer:7,layer:12"], capsys)
    assert status == 0
    assert "reads    layer:1, layer:7, layer:12" in out
    assert "assumed: rope_parameters" in out
    status, _, err = run(["export", str(tmp_path / "draft"), "--to", "onnx", "--out", str(tmp_path / "out")], capsys)
    assert status == 2
    assert "specforge" in err


def test_a_target_fills_in_what_it_knows_or_is_the_wrong_one(tmp_path: Path, tiny_targets, capsys: pytest.CaptureFixture[str]) -> None:
    target = tiny_targets("llama")
    command = ["import", str(GOLDEN / "specforge"), "--out", str(tmp_path / "draft"), "--target", str(target)]
    status, _, err = run(command, capsys)
    assert status == 2
    assert "target_hidden_size" in err
    assert not (tmp_path / "draft").exists()


def test_a_draft_with_a_copy_of_the_targets_embedding(tmp_path: Path, tiny_targets) -> None:
    """Embedding and head are held against the target's by numbers, and the imported draft can be used with it."""
    target = load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)
    config = DraftConfig.from_target(target.config, num_taps=3, draft_vocab_size=target.vocab_size)
    draft = Eagle3Draft(dataclasses.replace(config, own_embedding=True))
    draft.embed_tokens.weight.data.copy_(target.embed.weight)
    save_draft(tmp_path / "draft", draft, Wiring(taps=parse_taps("embed,layer:1,layer:2"), **draft_wiring_fields(draft)), None, "card")
    export_draft(tmp_path / "draft", "speculators", tmp_path / "out")
    (tmp_path / "out" / "eyas_wiring.json").unlink()
    report = import_draft(tmp_path / "out", tmp_path / "back", target=str(tiny_targets("llama")))
    assert report.wiring.num_target_layers == target.num_layers
    assert report.wiring.tokenizer_hash == target.tokenizer_hash
    assert "the draft's embedding equals the target's" in report.notes
    assert any("lm_head is not the target's" in line for line in report.notes)
    assert load_draft(tmp_path / "back", target, torch.float32).wiring.taps == parse_taps("embed,layer:1,layer:2")
