"""What is wrong with the options is said before the target's weights are read, in words and with exit status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eyas.targets.loading
from eyas.cli.main import main


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def place(tiny_targets, tmp_path_factory) -> Path:
    """With a target's chats, a dump of its embeddings and a file that is no text."""
    from eyas.targets.tiny_text import tiny_chats

    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(8, seed=3)))
    (folder / "binary").write_bytes(bytes(range(256)))
    target = tiny_targets("llama")
    arguments = ("--data", folder / "chats.jsonl", "--taps", "embed,layer:1", "--out", folder / "dump", "--dtype", "fp32")
    assert run("capture", "--target", target, *arguments) == 0
    return folder


CAPTURE = ("capture", "--data", "chats.jsonl", "--taps", "embed,layer:1", "--out", "new", "--dtype", "fp32")
TRAIN = ("train", "--dump", "dump", "--out", "new", "--dtype", "fp32")
SAMPLE = ("data", "sample", "--count", "1", "--out", "new.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*CAPTURE, "--batch-tokens", "-5"), "--batch-tokens is out of range"),
        ((*CAPTURE, "--max-samples", "0"), "--max-samples is out of range"),
        ((*CAPTURE, "--data", "binary"), "is not UTF-8 text"),
        ((*CAPTURE, "--out", "dump", "--taps", "layer:1,embed"), "taps = layer:1,embed"),
        ((*CAPTURE, "--out", "binary"), "is not a dump"),
        ((*TRAIN, "--steps", "3", "--draft-vocab-size", "1000000"), "the draft vocabulary does not fit"),
        ((*TRAIN, "--steps", "3", "--out", "dump"), "exists already"),
        ((*TRAIN, "--steps", "3", "--head", "mla"), "MLA"),
        ((*TRAIN, "--steps", str(10**23)), "--steps is out of range"),
        ((*TRAIN, "--steps", "3", "--learning-rate", "inf"), "a positive, finite number"),
        ((*TRAIN, "--minutes", "nan"), "--minutes is out of range"),
        ((*TRAIN, "--minutes", "1e9"), "at most 100,000"),
        ((*TRAIN, "--minutes", "1e300"), "at most 100,000"),
        (("generate", "--prompt", "a", "--draft", "dump", "--num-draft-tokens", "0"), "the number of draft tokens is out of range"),
        (("generate", "--prompt", "a", "--draft", "dump"), "is not an Eyas draft"),
        ((*SAMPLE, "--part", "5/2"), "--part must be I/N"),
        ((*SAMPLE, "--out", "binary/new.jsonl"), "is a file"),
        (("wiring", "infer", "--draft", "nowhere", "--data", "chats.jsonl"), "draft folder does not exist"),
    ],
)
def test_the_options_are_judged_first(place, tiny_targets, monkeypatch, capsys, arguments, message):
    def unread(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(eyas.targets.loading, "_load_weights", unread)
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert run(*arguments, "--target", tiny_targets("llama")) == 2
    assert message in capsys.readouterr().err
    assert sorted(place.rglob("*")) == before


def test_a_target_is_not_imported_as_a_draft(tiny_targets, tmp_path, capsys):
    assert run("import", tiny_targets("llama"), "--out", tmp_path / "draft") == 2
    assert "looks like a target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": [{"role": "user", "content": null}, {"role": "assistant", "content": "b"}]}', "a user message without content"),
        ('{"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}', "a user message without content"),
        ("{broken", "line 1: not valid JSON"),
    ],
)
def test_a_bad_chat_is_named_for_what_it_lacks(tiny_targets, tmp_path, capsys, line, message):
    (tmp_path / "chats.jsonl").write_text(line + "\n")
    assert run("data", "prepare", "--target", tiny_targets("llama"), "--chats", tmp_path / "chats.jsonl", "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("line 1") <= 1


def test_answers_without_an_end_are_counted(tiny_targets, tmp_path, capsys):
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c d"}], "finish_reasons": ["length"]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    arguments = ("--target", tiny_targets("llama"), "--chats", tmp_path / "chats.jsonl", "--out", tmp_path / "out")
    assert run("data", "prepare", *arguments) == 0
    assert "  1 cut off at the limit: their end is not trained" in capsys.readouterr().out


def test_what_cannot_be_compared_is_not_called_a_match(place, tiny_targets, tmp_path, capsys):
    unknown = tmp_path / "dump"
    unknown.mkdir()
    for file in (place / "dump").iterdir():
        (unknown / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((unknown / "manifest.json").read_text())
    manifest["wiring"] |= {"num_target_layers": None, "tokenizer_hash": None}
    (unknown / "manifest.json").write_text(json.dumps(manifest))
    assert run("wiring", "diff", tiny_targets("llama"), unknown) == 0
    said = capsys.readouterr().out
    assert "could not be compared, since one side does not state it: num_target_layers, tokenizer_hash" in said
    assert "they match" not in said
