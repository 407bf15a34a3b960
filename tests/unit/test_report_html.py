"""The page of a diagnosis: whole in itself, everything told, nothing of an exhibit's text taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eyas.doctor.hypothesis import Diagnosis, Evidence, Fault, Finding, Hypothesis, Outcome, Slot, Tested
from eyas.doctor.report_html import page, write_html

NASTY = "<script>alert('x')</script> & \"quoted\""
VOID = {"meta", "br", "line", "rect", "path"}


class Checked(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def diagnosis(**changes: object) -> Diagnosis:
    evidence = Evidence(f"slot 0 reads {NASTY}", {"share": 0.341, "list": [1, 2]})
    fault = Fault("taps-shifted", "draft", (evidence,), "set the ids to [1, 2, 3]", verified=True)
    asked = Hypothesis(
        "taps-shifted", "replay", "states of a neighbour", ("draft",), "search", "another choice is better", lambda exam: None
    )  # type: ignore[arg-type,return-value]
    other = Hypothesis("rope-theta", "replay", "another theta", ("draft",), "sweep", "accuracy rises", lambda exam: None)  # type: ignore[arg-type,return-value]
    values = {
        "verdict": "fault",
        "summary": f"states of a neighbouring layer {NASTY}",
        "findings": (
            Finding("taps-shifted", "A", "the states are those of a neighbouring layer", "draft", (evidence,), fault.remedy, True, 0.9),
        ),
        "tested": (
            Tested(other, Outcome("cannot be tested", reason="needs --dump"), 0.01),
            Tested(asked, Outcome("confirmed", (evidence,), (fault,)), 1.5),
        ),
        "slots": (Slot(0, "embed", "layer:0"), Slot(1, "layer:2", "layer:2"), Slot(2, "layer:10", None)),
        "measured": {
            "accuracy": 0.769,
            "slot_matrix": {"boundaries": ["embed", "layer:0"], "accuracy": [[0.2, 0.7], [0.4, None], [0.5, 0.5]]},
            "expected": {"conditional": [0.8, 0.6], "unconditional": [0.8, 0.48]},
            "reported": [
                {
                    "conditional": [{"value": 0.3, "low": 0.28, "high": 0.32}, {"value": 0.2, "low": 0.18, "high": 0.22}],
                    "unconditional": [{"value": 0.3, "low": 0.28, "high": 0.32}, {"value": 0.06, "low": 0.05, "high": 0.07}],
                }
            ],
        },
        "notes": ("a note",),
        "exhibits": {"draft": "folder"},
        "seconds": 3.2,
    }
    return Diagnosis(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def text() -> str:
    return page(diagnosis().to_json())


def test_it_is_whole_in_itself(text):
    assert "table" in Checked(text).seen
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", text)
    assert "default-src 'none'" in text


def test_nothing_of_an_exhibit_is_markup(text):
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") >= 3


def test_everything_is_told(text):
    for words in (
        "set the ids to [1, 2, 3]",
        "mended and measured",
        "needs --dump",
        "sweep",
        "a note",
        "docs/doctor/taps-shifted.md",
        "1 confirmed",
    ):
        assert words in text, words
    assert text.index("states of a neighbour") < text.index("another theta"), "what was confirmed comes first"


def drawings(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def test_wires_lead_from_states_to_slots(text):
    wiring, chart = drawings(text)
    labels = [part.text for part in wiring.iter("text")]
    assert labels[2:] == ["embed", "layer:0", "layer:2", "layer:10", "slot 0", "slot 1", "slot 2"]
    kinds = [part.get("class") for part in wiring.iter("path")]
    assert kinds == ["wire declared", "wire found", "wire right", "wire right"]
    heights = [float(part.get("height")) for part in chart.iter("rect")]
    assert heights == [0.8 * 180, 0.3 * 180, 0.6 * 180, 0.2 * 180]


def test_bounds_are_drawn_where_a_server_gives_its_mean_alone():
    bounds = [{"value": None, "low": 0.2, "high": 0.6}, {"value": None, "low": 0.0, "high": 0.3}]
    reported = [{"conditional": [], "unconditional": bounds}]
    text = page(diagnosis(measured={"reported": reported, "expected": {"unconditional": [0.7, 0.5]}}).to_json())
    assert "Acceptance by position, of all rounds" in text
    chart = drawings(text)[1]
    ranges = [part for part in chart.iter("line") if part.get("class") == "range"]
    assert [(float(part.get("y1")), float(part.get("y2"))) for part in ranges] == [(144.0, 72.0), (180.0, 126.0)]
    assert len(list(chart.iter("rect"))) == 2


def test_the_best_state_of_each_slot_is_framed(text):
    cells = re.findall(r'<td class="(.*?)" style', text)
    assert [cell.split() for cell in cells] == [["declared"], ["best"], ["best"], [], ["best"], ["best"]]


def test_a_bare_diagnosis_has_a_page(tmp_path: Path):
    bare = diagnosis(verdict="healthy", findings=(), tested=(), slots=(), measured={}, notes=(), exhibits={})
    write_html(tmp_path / "page.html", bare.to_json())
    text = (tmp_path / "page.html").read_text()
    Checked(text)
    assert "No fault was found." in text
    assert "<svg" not in text
