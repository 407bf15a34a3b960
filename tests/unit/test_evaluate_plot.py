"""Reports that people look at: the picture exists and says what it should; the table has every row."""

from __future__ import annotations

import builtins
import dataclasses

import pytest
from rich.console import Console

from eyas.engine.request import Round
from eyas.errors import UserError
from eyas.evaluate.acceptance import acceptance
from eyas.evaluate.agreement import Agreement, Tie
from eyas.evaluate.evaluate import Evaluation, Figures
from eyas.evaluate.measure import Lossless, Speed
from eyas.evaluate.plot import Series, check_can_plot, write_plot, write_report
from eyas.evaluate.report import show
from eyas.evaluate.settings import EvaluateSettings
from eyas.files import read_json
from eyas.taps import parse_taps


def rounds(*accepted):
    return [Round(3, count, count + 1, tuple(range(count + 1))) for count in accepted]


@pytest.fixture
def evaluation():
    predicted, measured = acceptance([rounds(1, 0, 2, 0)], 3), acceptance([rounds(1, 0, 3, 0)], 3)
    figures = Figures(1, (0.5, 0.25, None), predicted, measured)
    unexplained = Tie("c7", "token 3: 5 in plain, 6 in speculative decoding", 0.5, 0.001)
    agreement = Agreement("equal round by round, except for proven ties", False, 4, 0.1, (), (unexplained,))
    taps = parse_taps("embed,layer:1,layer:2")
    empty = Figures(0, (None, None, None), None, None)
    return Evaluation(EvaluateSettings(), "float32", taps, taps, figures, empty, 1.0, {"chat": figures}, agreement, Speed(20.0, 25.0, 90))


def test_terminal_report_shows_both_accounts_and_what_is_unexplained(evaluation):
    console = Console(record=True, width=140, force_terminal=False)
    show(console, evaluation, Lossless(2, 30, "float32", ("prompt 1, token 4",)), "a draft")
    text = console.export_text()
    for wanted in ("acceptance length", "1.750", "2.000", "conditional rate at 3", "unconditional rate at 1", "rounds", "1.25 x"):
        assert wanted in text
    assert "UNEXPLAINED: chat c7" in text
    assert "DIFFERS" in text
    assert "DOES NOT HOLD" in text


def test_report_folder_holds_figures_and_picture(evaluation, tmp_path):
    write_report(tmp_path / "out", {"rounds": 4}, evaluation, "a target")
    assert read_json(tmp_path / "out" / "report.json", "report") == {"rounds": 4}
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_position_that_no_round_reached_is_left_open(tmp_path):
    never = acceptance([rounds(0, 0)], 3)
    assert never.conditional == (0.0, None, None)
    write_plot(tmp_path / "a.png", [Series("draft", never, None)], "title", "subtitle")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *rest, **more: (_ for _ in ()).throw(ImportError(name)) if name == "matplotlib" else real(name, *rest, **more),
    )
    with pytest.raises(UserError, match="matplotlib"):
        check_can_plot()


def test_settings_out_of_range():
    with pytest.raises(UserError, match="num_draft_tokens"):
        EvaluateSettings(num_draft_tokens=0)
    with pytest.raises(UserError, match="max_new_tokens"):
        dataclasses.replace(EvaluateSettings(), max_new_tokens=1)
