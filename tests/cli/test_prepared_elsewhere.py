"""Chats that were prepared for another target: what a prepared folder knows is compared before weights are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import eyas.targets.loading
from eyas.cli.main import main
from eyas.data.store import Dump
from eyas.targets.loading import chat_template_hash, load_tokenizer
from eyas.targets.tiny_text import tiny_chats


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def with_another_template(target: Path, folder: Path) -> Path:
    shutil.copytree(target, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# another #}")
    return folder


def with_another_tokenizer(target: Path, folder: Path) -> Path:
    """Two tokens have changed places."""
    shutil.copytree(target, folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(content))
    return folder


@pytest.fixture
def place(tiny_targets, tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(12, seed=3)))
    with_another_template(tiny_targets("llama"), tmp_path / "template")
    with_another_tokenizer(tiny_targets("llama"), tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    for name in ("template", "tokenizer"):
        assert run("data", "prepare", "--target", name, "--chats", "chats.jsonl", "--out", f"for-{name}") == 0
    return tmp_path


CAPTURE = ("capture", "--taps", "embed,layer:1", "--out", "dump", "--dtype", "fp32", "--device", "cpu")


@pytest.fixture
def unread(monkeypatch) -> None:
    def read(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(eyas.targets.loading, "_load_weights", read)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("for-tokenizer", ("prepared with another tokenizer", "eyas data prepare")),
        ("for-template", ("prepared with another chat template", "prepared for template", "--allow-other-template")),
    ],
)
def test_capture_refuses_them(place, tiny_targets, unread, capsys, data, words):
    assert run(*CAPTURE, "--target", tiny_targets("llama"), "--data", data) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert not (place / "dump").exists()


def test_another_template_may_be_meant(place, tiny_targets, capsys):
    assert run(*CAPTURE, "--target", tiny_targets("llama"), "--data", "for-template", "--allow-other-template") == 0
    assert "warning: for-template was prepared with another chat template" in capsys.readouterr().err
    template = chat_template_hash(load_tokenizer("template"))
    assert Dump.open(place / "dump").wiring.chat_template_hash == template != chat_template_hash(load_tokenizer(str(tiny_targets("llama"))))


def test_no_flag_makes_other_ids_mean_the_same(place, tiny_targets, unread, capsys):
    assert run(*CAPTURE, "--target", tiny_targets("llama"), "--data", "for-tokenizer", "--allow-other-template") == 2
    assert "prepared with another tokenizer" in capsys.readouterr().err


def test_infer_refuses_other_ids(place, tiny_targets, unread, capsys):
    draft = place / "draft"
    assert run("model", "pull", "smollm2-135m-draft", "--out", draft) == 0
    capsys.readouterr()
    wiring = json.loads((draft / "wiring.json").read_text())
    of_target = ("num_target_layers", "target_hidden_size", "target_vocab_size", "tokenizer_hash")
    (draft / "wiring.json").write_text(json.dumps(wiring | dict.fromkeys(of_target)))  # that it is another one's is not the question here
    assert run("wiring", "infer", "--target", tiny_targets("llama"), "--draft", draft, "--data", "for-tokenizer") == 2
    assert "prepared with another tokenizer" in capsys.readouterr().err
