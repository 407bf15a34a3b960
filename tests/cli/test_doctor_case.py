"""eyas doctor's files: the page, the case and its story, and options that go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.cli.main import main

FIGURES = """\
vllm:spec_decode_num_drafts_total 1000
vllm:spec_decode_num_draft_tokens_total 3000
vllm:spec_decode_num_accepted_tokens_total 300
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 200
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 70
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 30
"""


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.txt"
    path.write_text(FIGURES)
    return path


def test_metrics_alone_give_a_verdict_and_a_page(metrics, tmp_path, capsys):
    assert run("doctor", "--metrics", metrics, "--html", tmp_path / "page.html", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] == "inconclusive"
    assert any("(A, C, B)" in line for line in value["signature"])
    text = (tmp_path / "page.html").read_text()
    assert "inconclusive" in text
    assert "Acceptance by position" in text


def test_a_case_tells_what_moved(metrics, tmp_path, capsys):
    case = tmp_path / "hunt"
    assert run("doctor", "--metrics", metrics, "--case", case, "--note", "as served") == 0
    metrics.write_text(FIGURES.replace("} 200", "} 1200"))
    assert run("doctor", "--metrics", metrics, "--case", case, "--json") == 1
    output = capsys.readouterr().out
    value = json.loads(output.splitlines()[-1])
    assert value["run"] == 2
    assert value["moved"][0] == "changed: metrics"
    assert [item["code"] for item in value["findings"]] == ["metric-impossible"]
    add = ("doctor", "case", "add", case, "mine", "--command", "echo 3", "--number", "([0-9]+)", "--low", 2)
    assert run(*add) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("3. ")
    assert said[0].endswith("asked: mine")
    assert said[-1] == f"kept as entry 3 of the case {case}; run the command: eyas doctor case try {case} mine"
    assert run("doctor", "case", "try", case, "mine") == 1
    assert run("doctor", "case", "show", case, "--html", tmp_path / "story.html") == 0
    lines = capsys.readouterr().out
    assert "(as served)" in lines
    assert "new: metric-impossible (metrics)" in lines
    assert "as served" in (tmp_path / "story.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fix",), "--fix and --out"),
        (("--out", "x"), "--fix and --out"),
        (("--note", "x"), "--note"),
        (("--fix", "--out", "x", "--case", "y"), "do not go together"),
        (("--fix", "--out", "x"), "--fix needs --draft"),
        (("--depth", "deepest"), "--depth"),
    ],
)
def test_options_that_do_not_go_together_are_refused(metrics, options, words, capsys):
    assert run("doctor", "--metrics", metrics, *options) == 2
    assert words in capsys.readouterr().err


def test_a_case_that_is_none_is_refused(tmp_path, capsys):
    assert run("doctor", "case", "show", tmp_path / "none") == 2
    assert "holds no case" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file/page.html", "folder"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(metrics, tmp_path, capsys, monkeypatch, place):
    import eyas.doctor.runner

    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(eyas.doctor.runner, "examine", lambda *arguments: pytest.fail("examined"))
    assert run("doctor", "--metrics", metrics, "--html", tmp_path / place) == 2
    error = capsys.readouterr().err
    assert "--html" in error
    assert "--out" not in error


@pytest.mark.parametrize(("depth", "drawn"), [("static", False), ("weights", False), ("replay", True)])
def test_a_page_runs_the_target_only_if_a_replay_was_asked_for(metrics, tmp_path, monkeypatch, depth, drawn):
    import eyas.doctor.slot_matrix

    asked = []
    monkeypatch.setattr(eyas.doctor.slot_matrix, "slot_matrix", asked.append)
    assert run("doctor", "--metrics", metrics, "--depth", depth, "--html", tmp_path / "page.html") == 0
    assert bool(asked) == drawn


def test_what_a_file_says_does_not_reach_the_terminal_as_an_order(tmp_path, capsys):
    (tmp_path / "metrics").write_text("\x1b]0;title\x07\x1b[31mred")
    assert run("doctor", "--metrics", tmp_path / "metrics") == 2
    assert run("wiring", "show", "no\x1b[31mpe") == 2
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().err)
