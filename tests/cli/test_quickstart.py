"""The quickstart from beginning to end on a tiny target, killed in the middle and gone on with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from eyas.data.chats import Chat
from eyas.errors import UserError
from eyas.quickstart import run as quickstart
from eyas.quickstart.recipe import Recipe
from eyas.targets.tiny_text import tiny_chats
from eyas.train.loop import Trainer

RECIPE = Recipe(
    minutes=2,
    num_chats=40,
    evaluated=8,
    seconds_behind=10,
    taps="layer:0,layer:1,layer:2",
    answer_tokens=40,
    evaluated_tokens=32,
    lossless_prompts=2,
    learning_rate=4e-3,
    tokens_per_batch=2048,
    draft_vocab_size=None,
    training_steps=60,
)
KEYS = {
    "first_token_accuracy",
    "acceptance_length_predicted",
    "acceptance_length_measured",
    "tokens_per_second_plain",
    "tokens_per_second_speculative",
    "lossless",
    "dtype",
    "rounds",
    "accuracy_as_if_wrong_taps",
    "without_loops",
}


@pytest.fixture
def tiny(monkeypatch, tiny_targets):
    """The target pulled is a tiny one; the project's prompts are tiny chats; the shipped draft is not to be had."""
    pulled = []

    def pull(name, out):
        pulled.append(name)
        if name == RECIPE.shipped:
            raise UserError("this draft is not here")
        shutil.copytree(tiny_targets("llama", trained=True), out)

    def built_in(name):
        seed = {"answered": 11, "heldout": 12}[name]
        chats = [chat for chat in tiny_chats(40, seed) if len(chat) == 2]
        already = 12 if name == "answered" else 0  # the rest is answered by the target
        return [Chat(f"{name}-{n}", tuple(chat if n < already else chat[:-1]), "chat") for n, chat in enumerate(chats)]

    monkeypatch.setattr(quickstart, "pull", pull)
    monkeypatch.setattr(quickstart, "_built_in", built_in)
    return pulled


def play(out):
    return quickstart.run_quickstart(out, RECIPE, torch.device("cpu"), torch.float32)


def test_killed_in_the_middle_and_gone_on_with(tiny, tmp_path, monkeypatch):
    out = tmp_path / "show"

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "run", killed)
        play(out)
    stamps = {path: path.stat().st_mtime_ns for path in [*(out / "dump").iterdir(), out / "chats" / "train.jsonl"]}
    assert not (out / "summary.json").exists()

    summary = play(out)
    assert tiny.count(RECIPE.target) == 1
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "what was done was not done again"
    assert {path.name for path in out.iterdir()} >= {"target", "dump", "draft", "chats", "report.png", "summary.json"}
    assert {path.name for path in (out / "chats").glob("*.jsonl")} >= {"train.jsonl", "heldout.jsonl"}
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")

    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert set(summary) >= KEYS | {"wall_seconds", "peak_rss_gib"}
    assert summary["lossless"] is True
    assert summary["agreement"]["unexplained"] == []
    assert summary["acceptance_length_measured"] == pytest.approx(summary["acceptance_length_predicted"], rel=0.05)
    assert summary["as_if_wrong_taps"]["taps"] == "layer:1,layer:2,layer:3"
    assert summary["accuracy_as_if_wrong_taps"] != summary["first_token_accuracy"], "the other states were really fed"
    assert summary["first_token_accuracy"] > 0.3
    assert summary["shipped"] is None
    assert 0 < summary["acts"]["answers"]["answered_now"] < summary["acts"]["answers"]["chats"]
    assert summary["acts"]["answers"]["own_share"] > 0.5
    assert "not here" in summary["shipped_reason"]

    again = play(out)
    assert again["first_token_accuracy"] == summary["first_token_accuracy"]


def test_both_drafts_are_shown_when_one_comes_along(tiny, tmp_path, monkeypatch, capsys):
    """The shipped draft's figures stand under `shipped`; here it is the draft of an earlier run."""
    first = play(tmp_path / "first")
    pull = quickstart.pull
    monkeypatch.setattr(
        quickstart,
        "pull",
        lambda name, out: shutil.copytree(tmp_path / "first" / "draft", out) if name == RECIPE.shipped else pull(name, out),
    )
    summary = play(tmp_path / "second")
    assert set(summary["shipped"]) >= KEYS
    assert summary["shipped_reason"] is None
    assert summary["shipped"]["first_token_accuracy"] == pytest.approx(first["first_token_accuracy"])
    shown = capsys.readouterr().err
    assert quickstart.OWN in shown
    assert quickstart.SHIPPED in shown
    assert "NOT lossless" not in shown
    assert "the target itself is undecided" not in shown  # the same draft twice


def test_too_little_time_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "eyas.cli.main", "quickstart", "--out", str(tmp_path / "x"), "--minutes", "0.5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--minutes" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_folder_with_somebody_elses_target_is_left_alone(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").touch()
    with pytest.raises(UserError, match="no quickstart made"):
        play(tmp_path)
    assert (tmp_path / "target" / "mine").exists()
    assert not (tmp_path / "quickstart.json").exists()


def test_a_folder_that_is_no_quickstarts_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no quickstart made"):
        play(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
