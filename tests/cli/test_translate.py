"""eyas wiring translate, as a user calls it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.main import main
from eyas.taps import parse_taps
from eyas.wiring import Wiring


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    config = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 129280}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def wiring(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(Wiring(taps=parse_taps("embed,layer:2,layer:30"), num_target_layers=61).to_json()))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["wiring", "translate", *map(str, arguments)])
    return int(left.value.code or 0), *capsys.readouterr()


def test_json_names_what_checks_rely_on(capsys: pytest.CaptureFixture[str], target: Path, wiring: Path) -> None:
    status, out, _ = run(capsys, wiring, "--to", "sglang==0.5.14", "--target", target, "--json")
    found: dict[str, Any] = json.loads(out)
    assert (status, found["reachable"]) == (0, True)
    assert found["config"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 3, 31]
    assert found["flags"][:2] == ["--speculative-algorithm", "EAGLE3"]
    assert all(isinstance(note, str) for note in found["notes"])


def test_what_cannot_be_fed_exits_1_with_the_reason(capsys: pytest.CaptureFixture[str], target: Path, wiring: Path) -> None:
    status, out, _ = run(capsys, wiring, "--to", "sglang==0.5.12", "--target", target, "--json")
    found = json.loads(out)
    assert (status, found["reachable"], found["config"], found["flags"]) == (1, False, {}, [])
    assert "tap embed" in found["notes"][0]
    status, out, _ = run(capsys, wiring, "--to", "vllm==0.33.0", "--target", target)
    assert status == 1
    assert "cannot feed" in out


def test_the_text_holds_flags_that_a_shell_takes(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    path = tmp_path / "sorted.json"
    path.write_text(json.dumps(Wiring(taps=parse_taps("layer:2,layer:30,layer:57")).to_json()))
    status, out, _ = run(capsys, path, "--to", "vllm==0.33.0", "--target", target)
    assert status == 0
    words = shlex.split(next(line for line in out.splitlines() if line.startswith("--speculative-config")))
    assert json.loads(words[1])["method"] == "eagle3"


def test_a_drafts_head_is_judged_too(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    switches = {"norm_before_fc": False, "fc_norm": False, "norm_before_residual": True, "norm_output": False}
    config = {
        "eyas_draft_format": 1,
        "num_taps": 3,
        "hidden_size": 7168,
        "target_hidden_size": 7168,
        "vocab_size": 129280,
        "draft_vocab_size": 32000,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        **switches,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "wiring.json").write_text(json.dumps(Wiring(taps=parse_taps("layer:2,layer:30,layer:57"), **switches).to_json()))
    assert run(capsys, folder, "--to", "vllm==0.33.0", "--target", target)[0] == 0
    status, out, _ = run(capsys, folder, "--to", "sglang==0.5.23", "--target", target)
    assert status == 1
    assert "norm_before_residual is never read" in out
    (folder / "config.json").write_text("{}")
    status, _, err = run(capsys, folder, "--to", "vllm==0.33.0", "--target", target)
    assert status == 2
    assert "eyas import" in err


@pytest.mark.parametrize("change", ["engine", "path", "target", "taps"])
def test_bad_input_exits_2(capsys: pytest.CaptureFixture[str], target: Path, wiring: Path, tmp_path: Path, change: str) -> None:
    if change == "taps":
        wiring.write_text(json.dumps(Wiring().to_json()))
    arguments = {"path": wiring, "engine": "vllm==0.33.0", "target": target}
    arguments |= (
        {change: {"engine": "vllm", "path": tmp_path / "none", "target": tmp_path / "none"}.get(change)} if change != "taps" else {}
    )
    status, out, err = run(capsys, arguments["path"], "--to", arguments["engine"], "--target", arguments["target"], "--json")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")


ENGINES = [
    *(f"vllm==0.{minor}.0" for minor in (16, 17, 18, 22, 24, 25, 27, 29, 33)),
    *(f"sglang==0.5.{patch}" for patch in (9, 10, 12, 13, 14, 17, 21, 23)),
]
FAMILIES = (
    "LlamaForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "GptOssForCausalLM",
)
READS = (
    "layer:1,layer:3,layer:5",
    "embed,layer:2,layer:5",
    "layer:5,layer:0,layer:2",
    "layer:2,layer:4,layer:7",
    "layer:1,layer:2,final",
    "layer:6",
)


@pytest.mark.parametrize("engine", ENGINES)
def test_export_and_translate_give_the_same_answer(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 and a checkpoint, or exit 1 and nothing written: for every kind of target, and states from both ends and the middle."""
    import dataclasses

    import torch

    from eyas.draft.checkpoint import draft_wiring_fields, save_draft
    from eyas.draft.config import DraftConfig
    from eyas.draft.model import Eagle3Draft

    rope = {"rope_type": "default", "rope_theta": 1e4}
    plain = DraftConfig(8, 8, 3, 8, 2, 2, 4, 24, 24, rope, 64)
    answers = set()
    for number, taps in enumerate(READS):
        wiring = Wiring(taps=parse_taps(taps), num_target_layers=8, target_hidden_size=8, target_vocab_size=24)
        torch.manual_seed(number)
        draft = Eagle3Draft(dataclasses.replace(plain, num_taps=len(wiring.taps), norm_output=number % 2 == 1))
        save_draft(tmp_path / f"draft {number}", draft, wiring.replace(**draft_wiring_fields(draft)), None, "card", dtype=None)
        for family in FAMILIES:
            (tmp_path / "target").mkdir(exist_ok=True)
            sizes = {"num_hidden_layers": 8, "hidden_size": 8, "vocab_size": 24}
            (tmp_path / "target" / "config.json").write_text(json.dumps({"architectures": [family], **sizes}))
            out = tmp_path / f"{number} {family}"
            common = ("--to", engine, "--target", tmp_path / "target", "--json")
            status, text, err = run(capsys, tmp_path / f"draft {number}", *common)
            found = json.loads(text) if status != 2 else {"reachable": None}
            with pytest.raises(SystemExit) as left:
                main(["export", str(tmp_path / f"draft {number}"), "--out", str(out), *map(str, common)])
            exported, _ = capsys.readouterr()
            assert left.value.code == status, (taps, family, err)
            assert found["reachable"] == {0: True, 1: False, 2: None}[status]
            assert out.exists() == (status == 0)
            if status != 2:
                assert json.loads(exported)["reachable"] == found["reachable"]
            answers.add(status)
    assert {0, 1} <= answers, "both answers were seen"
