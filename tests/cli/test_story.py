"""The story on a tiny target, by the commands that docs/story.md names: right states, then wrong ones, then the table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from eyas.cli.main import main
from eyas.targets.tiny_text import tiny_chats

TABLE = Path(__file__).parents[2] / "examples" / "story" / "table.py"
TRAINED_ON, FED = "embed,layer:0,layer:1", "layer:0,layer:1,layer:3"
TRAINING = ["--steps", 100, "--learning-rate", 5e-3, "--tokens-per-batch", 512]  # 75 % right, 55 % on the wrong states


@pytest.fixture(scope="module")
def story():
    spec = importlib.util.spec_from_file_location("story_table", TABLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert not caught.value.code, err
        return out

    return command


def test_the_story_in_small(tiny_targets, tmp_path, run, story):
    target = tiny_targets("llama", trained=True)
    for name, seed, count in (("train", 21, 150), ("heldout", 22, 16)):
        lines = [json.dumps({"messages": chat}) for chat in tiny_chats(count, seed)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    where = ["--target", target, "--dtype", "fp32", "--device", "cpu"]
    run("data", "prepare", "--target", target, "--chats", tmp_path / "train.jsonl", "--out", tmp_path / "prepared")
    run("capture", *where, "--data", tmp_path / "prepared", "--taps", TRAINED_ON, "--out", tmp_path / "dump")
    run("train", *where, "--dump", tmp_path / "dump", "--taps", TRAINED_ON, "--out", tmp_path / "draft", *TRAINING)
    evaluate = ["evaluate", *where, "--draft", tmp_path / "draft", "--chats", tmp_path / "heldout.jsonl", "--max-new-tokens", 48, "--json"]
    right = json.loads(run(*evaluate))
    wrong = json.loads(run(*evaluate, "--as-if", FED))

    assert right["first_token_accuracy"] > wrong["first_token_accuracy"] + 0.1
    assert right["acceptance_length_measured"] > wrong["acceptance_length_measured"]
    assert right["lossless"] is wrong["lossless"] is True, "wrong states cost speed, never the text"
    lines = story.table(right, wrong).splitlines()
    assert f"| states fed | `{TRAINED_ON}` | `{FED}` |" in lines
    accuracy = next(line for line in lines if line.startswith("| first-token accuracy"))
    assert f"{100 * right['loops']['without_loops']['first_token_accuracy']:.1f} %" in accuracy


def test_the_columns_cannot_be_swapped(story):
    with pytest.raises(SystemExit, match="as-if"):
        story.table({"as_if": "embed"}, {"as_if": None})
