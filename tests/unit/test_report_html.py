"""The page of a diagnosis: whole in itself, everything told, nothing of an exhibit's text taken for markup."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
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


def test_a_running_server_is_told_pass_by_pass():
    reported = {"where": "8 prompts <alone>", "rounds": 310.0, "acceptance_length": {"value": 1.31}, "conditional": [{"value": 0.3}, None]}
    expected = {"vllm_acceptance_length": 1.69, "conditional": [0.46, 0.42]}
    text = page(diagnosis(measured={"served": [{"reported": reported, "expected": expected}]}).to_json())
    Checked(text)
    for words in ("8 prompts &lt;alone&gt;", "310", "1.31", "1.69", "30.0 %, not known", "46.0 %, 42.0 %"):
        assert f"<td>{words}</td>" in text, words


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


# -- in a real browser -------------------------------------------------------------------------------------------

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
MEASURE = """<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe style="border:0;width:%dpx;height:3000px"></iframe>
<pre id="said"></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, all = [...page.querySelectorAll("body *")];
  const shown = all.filter(item => item.getClientRects().length);
  const wide = shown.filter(item => !item.closest(".scroll") && item.getBoundingClientRect().right > %d + 1);
  const letters = [...page.querySelectorAll("svg text")].map(item => item.getBoundingClientRect().height);
  const texts = [...page.querySelectorAll("svg#diagram text.label")].map(item => item.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const overlaps = texts.filter((a, i) => texts.some((b, j) => i < j && meet(a, b)));
  document.querySelector("#said").textContent = "SAID" + JSON.stringify({
    elements: shown.length, width: page.documentElement.scrollWidth, wide: wide.map(item => item.outerHTML.slice(0, 80)),
    smallest: Math.min(99, ...letters), overlaps: overlaps.length,
    background: getComputedStyle(page.body).backgroundColor, color: getComputedStyle(page.body).color}) + "DIAS";
};
frame.srcdoc = %s;
</script>"""


def in_browser(folder: Path, text: str, width: int) -> tuple[dict[str, Any], str]:
    """What a frame of that width shows of a page, and all that the browser had to say about it."""
    assert CHROMIUM is not None
    harness = folder / f"harness-{width}.html"
    harness.write_text(MEASURE % (width, width, json.dumps(text).replace("</", "<\\/")), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    command += [
        "--enable-logging=stderr",
        "--virtual-time-budget=4000",
        f"--window-size={max(500, width)},3000",
        "--dump-dom",
        harness.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = re.search(r"SAID(.*?)DIAS", done.stdout.split("<pre", 1)[-1], flags=re.DOTALL)
    assert said is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(said[1])), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page is checked as text only")
@pytest.mark.parametrize("width", [1280, 420])
def test_a_browser_shows_it_whole_and_has_nothing_to_say(tmp_path: Path, width: int):
    long = Evidence("a_name_without_any_place_to_break_it/" * 6, {"figure": 0.123456789})
    finding = Finding("taps-shifted", "A", "states of a neighbour", "draft", (long,), "mend " * 60, True, 0.9)
    wide = {"boundaries": [f"layer:{number}" for number in range(40)], "accuracy": [[0.5] * 40] * 3}
    measured = {**diagnosis().measured, "slot_matrix": wide, "a figure": 0.25}
    pages = {
        "rich": page(diagnosis(findings=(finding,), measured=measured, next_steps=("give --target",), signature=("a hint",)).to_json()),
        "bare": page(diagnosis(verdict="healthy", findings=(), tested=(), slots=(), measured={}, notes=(), exhibits={}).to_json()),
    }
    for name, text in pages.items():
        shown, said = in_browser(tmp_path, text, width)
        assert said == "", name
        assert shown["elements"] > 5, name
        assert shown["width"] <= width, (name, shown["wide"])
        assert shown["wide"] == [], name
        assert shown["smallest"] >= 9, f"{name}: letters of {shown['smallest']} px"
        assert shown["overlaps"] == 0, name
