"""The report in a terminal: what was asked, the wiring slot by slot, then causes and, last, the verdict."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from eyas.doctor.checks import all_hypotheses
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis, Evidence, Fault, Finding, Outcome, Slot, Tested
from eyas.doctor.planning import plan
from eyas.doctor.terminal import show, show_plan


def printed(found: Diagnosis, width: int = 120) -> str:
    out = io.StringIO()
    show(found, Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.fixture
def found() -> Diagnosis:
    evidence = (Evidence("fed [bold]layer:1[/bold] it is right on 34.1 %, fed layer:0 on 76.9 %"),)
    finding = Finding("taps-shifted", "A", "a neighbour's states", "draft", evidence, "set the ids", True, 0.9)
    asked = next(item for item in all_hypotheses() if item.code == "taps-other")
    other = next(item for item in all_hypotheses() if item.code == "rope-theta")
    return Diagnosis(
        "fault",
        "a neighbour's states (draft).",
        (finding,),
        (
            Tested(asked, Outcome("confirmed", evidence, (Fault("taps-shifted", "draft", evidence, "set the ids"),)), 1.0),
            Tested(other, Outcome("cannot be tested", reason="needs --target"), 0.0),
            Tested(other, Outcome("ruled out", (Evidence("theta 10000 is worse"),)), 0.0),
        ),
        slots=(Slot(0, "layer:1", "layer:0"), Slot(1, "layer:5", "layer:5"), Slot(2, "layer:9", None)),
        measured={"accuracy": 0.769, "accuracy_as_given": 0.341},
        signature=("vllm: the first position is weak (A, C, B)",),
        next_steps=("--log: the server's own log",),
        notes=("a note",),
    )


def test_all_is_told_in_order(found):
    text = printed(found)
    words = [
        "ruled out: 1",
        "theta 10000 is worse",
        "cannot be tested: needs --target: rope-theta",
        "note: a note",
        "wiring",
        "on real text",
        "signature: vllm",
        "next: --log",
        "1. a neighbour's states: draft",
        "34.1 %",
        "remedy: set the ids",
        "fault",
    ]
    places = [text.rindex(part) for part in words]
    assert places == sorted(places)


def test_the_wiring_shows_declared_and_found_for_each_slot(found):
    rows = [" ".join(line.replace("│", " ").split()) for line in printed(found).splitlines() if "slot " in line and "│" in line]
    assert rows == [
        "layer:1 -/-> slot 0 <=== layer:0",
        "layer:5 ---> slot 1 <--- layer:5",
        "layer:9 ---> slot 2 <--- not known",
    ]


@pytest.mark.parametrize("width", [40, 200])
def test_words_of_exhibits_are_no_markup_and_nothing_is_cut(found, width):
    text = "".join(printed(found, width).split())
    assert "fed[bold]layer:1[/bold]itisrighton34.1%" in text


def test_a_plan_says_what_is_missing():
    out = io.StringIO()
    show_plan(plan(Exhibits(metrics="http://127.0.0.1:1"), Options()), Console(file=out, width=200, highlight=False))
    text = out.getvalue()
    assert "metric-impossible" in text
    assert "server" in text
