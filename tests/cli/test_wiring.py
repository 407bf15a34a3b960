"""eyas wiring show and diff, on a target and on dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.cli.main import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    from eyas.targets.tiny_text import tiny_chats

    file = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(30, seed=9)))
    return file


@pytest.fixture(scope="module")
def dumps(tiny_targets, chats: Path, tmp_path_factory) -> dict[str, Path]:
    """By name: the taps in one order, in the other, and of a target of other weights."""
    folder = tmp_path_factory.mktemp("dumps")
    for name, seed, taps in (("one", 0, "embed,layer:2"), ("swapped", 0, "layer:2,embed"), ("other", 1, "embed,layer:2")):
        target = str(tiny_targets("llama", seed=seed))
        arguments = ["capture", "--target", target, "--data", str(chats), "--taps", taps, "--out", str(folder / name), "--dtype", "fp32"]
        assert run(*arguments) == 0
    return {name: folder / name for name in ("one", "swapped", "other")}


def test_capture_prints_one_json_object(tiny_targets, chats: Path, tmp_path: Path, capsys):
    arguments = [
        "--target",
        str(tiny_targets("llama")),
        "--data",
        str(chats),
        "--taps",
        "embed",
        "--out",
        str(tmp_path / "dump"),
        "--max-samples",
        "5",
        "--json",
    ]
    assert run("capture", *arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_samples"] == 5
    assert printed["dtype"] == "bfloat16"
    assert printed["teacher_check"]["passed"]
    assert printed["bytes"] == sum(path.stat().st_size for path in (tmp_path / "dump").glob("shard-*"))


@pytest.mark.parametrize(
    ("taps", "words"),
    [
        ("embed,layer:4", "beyond the last layer"),
        ("layer:1,boundary:2", "given twice"),
        ("embed,layer", "unknown tap"),
        ("", "no taps given"),
    ],
)
def test_bad_taps_are_refused_before_anything_is_loaded(tiny_targets, chats: Path, tmp_path: Path, capsys, taps: str, words: str):
    assert (
        run("capture", "--target", str(tiny_targets("llama")), "--data", str(chats), "--taps", taps, "--out", str(tmp_path / "dump")) == 2
    )
    assert words in capsys.readouterr().err
    assert not (tmp_path / "dump").exists()


def test_a_damaged_line_of_chats_names_its_number_and_nothing_is_written(tiny_targets, tmp_path: Path, capsys):
    (tmp_path / "bad.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n{"messages": 3}\n'
    )
    arguments = [
        "--target",
        str(tiny_targets("llama")),
        "--data",
        str(tmp_path / "bad.jsonl"),
        "--taps",
        "embed",
        "--out",
        str(tmp_path / "dump"),
    ]
    assert run("capture", *arguments) == 2
    assert "2" in capsys.readouterr().err
    assert not (tmp_path / "dump").exists()


def test_show_draws_which_state_goes_where(dumps, capsys):
    assert run("wiring", "show", str(dumps["swapped"])) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "fc columns" in line]
    assert "layer:2" in lines[0]
    assert "fc columns 0 to 63" in lines[0]
    assert "embed" in lines[1]
    assert "fc columns 64 to 127" in lines[1]
    assert "gives the target's own tokens" in printed


def test_show_json_is_the_wiring(dumps, tiny_targets, capsys):
    assert run("wiring", "show", str(dumps["one"]), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["kind"], printed["wiring"]["taps"], printed["has_trace"]) == ("dump", ["embed", "layer:2"], True)
    assert run("wiring", "show", str(tiny_targets("llama")), "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "target"


def test_a_dump_matches_itself_and_its_target(dumps, tiny_targets, capsys):
    assert run("wiring", "diff", str(dumps["one"]), str(dumps["one"])) == 0
    assert "the same model" in capsys.readouterr().out
    assert run("wiring", "diff", str(tiny_targets("llama")), str(dumps["one"])) == 0


def test_swapped_taps_differ_in_words(dumps, capsys):
    assert run("wiring", "diff", str(dumps["one"]), str(dumps["swapped"])) == 1
    printed = capsys.readouterr().out
    assert "the same states in another order" in printed
    assert "[embed, layer:2]" in printed
    assert "[layer:2, embed]" in printed


def test_other_weights_under_equal_fields_differ_by_the_trace(dumps, capsys):
    assert run("wiring", "diff", str(dumps["one"]), str(dumps["other"]), "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert [item["field"] for item in printed["differences"] if item["field_class"] == "must match"] == []
    assert printed["trace"]["same"] is False
    assert printed["trace"]["distance"] > printed["trace"]["allowed"]


def test_a_folder_without_wiring_is_refused(tmp_path: Path, capsys):
    assert run("wiring", "show", str(tmp_path)) == 2
    assert "neither a target, a dump nor a draft" in capsys.readouterr().err


def test_without_a_trace_something_else_is_named_that_tells(tiny_targets, dumps, capsys):
    target = str(tiny_targets("llama", seed=1))
    assert run("wiring", "diff", str(dumps["one"]), target) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"trace: not compared, the target {target} has none; what tells: eyas doctor --target {target} --dump {dumps['one']}" in out
    assert "wiring diff" not in out


def test_what_is_no_artefact_says_what_would_be(tmp_path, capsys):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "more.txt").touch()
    assert run("wiring", "show", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "got:     more.txt, notes.txt" in error
    assert "remedy:" in error
    assert run("wiring", "show", str(tmp_path / "notes.txt")) == 2
    assert "is a file, not a target's folder" in capsys.readouterr().err


def test_an_eyas_dump_is_not_imported_again(tiny_targets, dumps, tmp_path, capsys):
    assert run("import", str(dumps["one"]), "--out", str(tmp_path / "draft")) == 2
    assert "is an Eyas dump already" in capsys.readouterr().err
