"""A draft of another project whose files do not say what it reads: in with the states left open, found out, in again, used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eyas.capture.trace import record_trace
from eyas.cli.main import main
from eyas.data.store import Dump
from eyas.draft.checkpoint import draft_wiring_fields, read_draft, save_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.formats import export_draft
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.train.loop import Trainer
from eyas.train.settings import TrainSettings
from eyas.wiring import Wiring

TAPS = "embed,layer:1,layer:2"  # of the dump


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return int(left.value.code or 0), output.out, output.err


@pytest.fixture(scope="module")
def foreign(tiny_dump: Path, tiny_targets, tmp_path_factory) -> Path:
    """A trained draft as NeMo Automodel keeps it: no layer ids anywhere, and nothing of Eyas's beside it."""
    folder = tmp_path_factory.mktemp("foreign")
    target = load_target(str(tiny_targets("llama", trained=True)), device=torch.device("cpu"), dtype=torch.float32)
    settings = TrainSettings(steps=60, ttt_steps=2, learning_rate=4e-3, dtype="float32", tokens_per_batch=1024, fc_norm=True)
    trainer = Trainer(target, Dump.open(tiny_dump), settings, folder / "unused")
    torch.manual_seed(1)
    torch.nn.init.normal_(trainer.draft.fc.weight, std=trainer.draft.fc.in_features**-0.5)
    for step in range(60):
        trainer._step({"step": step, "tokens_passed": 0, "seconds": 0.0}, 60)
    wiring = Wiring(taps=parse_taps(TAPS), **draft_wiring_fields(trainer.draft))
    save_draft(folder / "draft", trainer.draft, wiring, None, "card")
    export_draft(folder / "draft", "automodel", folder / "checkpoint")
    (folder / "checkpoint" / "eyas_wiring.json").unlink()
    return folder / "checkpoint"


def test_from_files_that_do_not_say_to_a_draft_that_is_used(foreign: Path, tiny_dump: Path, tiny_targets, tmp_path: Path, capsys) -> None:
    target, chats, draft = tiny_targets("llama", trained=True), tiny_dump.with_name("tiny-dump-prepared"), tmp_path / "draft"
    status, _, err = run(capsys, "import", foreign, "--out", draft)
    assert status == 2
    assert "--taps unknown" in err

    status, out, _ = run(capsys, "import", foreign, "--out", draft, "--taps", "unknown", "--json")
    assert status == 0
    report = json.loads(out)
    assert report["wiring"]["taps"] == []
    assert any("eyas wiring infer" in note for note in report["notes"])
    status, out, _ = run(capsys, "wiring", "show", draft)
    assert status == 0
    assert "eyas wiring infer" in out

    jsonl = tiny_dump.with_name("tiny-dump-chats.jsonl")
    uses = {
        "evaluate": ("evaluate", "--target", target, "--draft", draft, "--chats", jsonl),
        "evaluate --as-if": ("evaluate", "--target", target, "--draft", draft, "--chats", jsonl, "--as-if", TAPS),
        "generate": ("generate", "--target", target, "--draft", draft, "--prompt", "Count from one to five."),
        "export": ("export", draft, "--to", "eagle", "--out", tmp_path / "out"),
        "translate": ("wiring", "translate", draft, "--to", "vllm==0.33.0", "--target", target),
    }
    for name, arguments in uses.items():
        status, _, err = run(capsys, *arguments)
        assert (name, status) == (name, 2), err
        assert "eyas wiring infer" in err, name
    assert not (tmp_path / "out").exists()

    infer = ("wiring", "infer", "--target", target, "--draft", draft, "--data", chats, "--rows", 2500)
    status, out, _ = run(capsys, *infer, "--json")
    assert status == 0
    found = json.loads(out)
    assert (found["decided"], found["declared"]) == (True, [])
    assert found["best"]["taps"] == TAPS.split(",")

    known = tmp_path / "known"
    status, _, _ = run(capsys, "import", foreign, "--out", known, "--taps", ",".join(found["best"]["taps"]))
    assert status == 0
    assert read_draft(known).wiring.taps == parse_taps(TAPS)
    status, out, _ = run(capsys, "generate", "--target", target, "--draft", known, "--prompt", "Count from one to five.")
    assert status == 0


def test_another_target_is_not_searched(tiny_targets, tmp_path: Path, capsys) -> None:
    """Nothing that the states of another model say is about this draft."""
    made_on, other = tiny_targets("llama"), tiny_targets("llama", seed=1)
    target = load_target(str(made_on), device=torch.device("cpu"), dtype=torch.float32)
    record_trace(target).save(tmp_path / "trace.safetensors")
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=target.vocab_size))
    wiring = Wiring(taps=parse_taps("embed,layer:1"), **draft_wiring_fields(draft))
    save_draft(tmp_path / "draft", draft, wiring, tmp_path / "trace.safetensors", "card")
    (tmp_path / "chats.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    )
    arguments = ("wiring", "infer", "--draft", tmp_path / "draft", "--data", tmp_path / "chats.jsonl", "--target")
    status, _, err = run(capsys, *arguments, other)
    assert (status, "is not the target that the draft draft was made on" in err) == (2, True), err
    wide = Wiring(taps=wiring.taps, target_hidden_size=99, **draft_wiring_fields(draft))
    save_draft(tmp_path / "wide", draft, wide, None, "card")
    status, _, err = run(capsys, "wiring", "infer", "--draft", tmp_path / "wide", "--data", tmp_path / "chats.jsonl", "--target", made_on)
    assert (status, "99" in err) == (2, True), err


def test_a_dump_is_not_left_open(tiny_targets, tmp_path: Path, capsys) -> None:
    from safetensors.torch import save_file

    save_file({"token_ids": torch.arange(4, 8), "hidden_states": torch.zeros(4, 4, 64)}, tmp_path / "hs_0.safetensors")
    arguments = ("import", tmp_path / "hs_0.safetensors", "--out", tmp_path / "out", "--target", tiny_targets(), "--taps", "unknown")
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "leave --taps out" in err
