"""A diagnosis as one HTML page that needs nothing beside it: no script, no font, no network.

It is made from the diagnosis's JSON, so that a kept one can be shown as well. Of `measured` it draws, where they are there:

    slot_matrix   {"boundaries": [name, ...], "accuracy": [[share or None, ...] for each slot]}   (`doctor.slot_matrix`)
    expected      acceptance that the replay predicts (`evaluate.acceptance`)
    reported      the servers' own figures, in the same terms (`doctor.readings`); the first one is drawn
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import eyas
from eyas.doctor.catalog import KINDS
from eyas.doctor.pages import environment
from eyas.files import write_text

_ROW, _TOP, _BOX, _HEIGHT = 34, 26, 132, 24
_RIGHT = 420
_CHART_HEIGHT, _CHART_LEFT, _CHART_STEP = 180, 44, 74
_ORDER = {"confirmed": 0, "suspected": 1, "ruled out": 2, "cannot be tested": 3}


@dataclass(frozen=True)
class Box:
    """`y` is its upper edge."""

    name: str
    y: int

    @property
    def middle(self) -> float:
        return self.y + _HEIGHT / 2


@dataclass(frozen=True)
class Line:
    """A state led to a slot. `kind`: as declared and right, declared only, or found only."""

    y1: float
    y2: float
    kind: str


@dataclass(frozen=True)
class Bar:
    """One position. Heights are in pixels; None where nothing is known. `low` and `high` bound what was reported."""

    x: int
    name: str
    expected: float | None
    reported: float | None
    low: float | None
    high: float | None
    words: str


@dataclass(frozen=True)
class Cell:
    """`ink`: black or white, whichever can be read on the colour."""

    text: str
    colour: str
    ink: str
    best: bool
    declared: bool


def write_html(path: Path, report: Mapping[str, Any]) -> None:
    """Raises UserError if the file cannot be written."""
    write_text(path, page(report))


def page(report: Mapping[str, Any]) -> str:
    """The page for a diagnosis's JSON (`Diagnosis.to_json`)."""
    slots = report.get("slots", [])
    names = _state_names(slots)
    states = [Box(name, _TOP + _ROW * place) for place, name in enumerate(names)]
    inputs = [Box(f"slot {item['slot']}", _TOP + _ROW * place) for place, item in enumerate(slots)]
    bars = _bars(report.get("measured", {}))
    return _template("report.html.j2").render(
        report=report,
        version=eyas.__version__,
        kinds=KINDS,
        next_steps=report.get("next", []),
        hypotheses=sorted(report.get("hypotheses", []), key=lambda item: _ORDER.get(item["verdict"], 4)),
        counts=_counts(report.get("hypotheses", [])),
        states=states,
        inputs=inputs,
        lines=_lines(slots, states, inputs),
        diagram_height=_TOP + _ROW * max(len(states), len(inputs), 1),
        box=_BOX,
        height=_HEIGHT,
        right=_RIGHT,
        bars=bars,
        rate=rate_of(report.get("measured", {})),
        chart_width=_CHART_LEFT + _CHART_STEP * max(1, len(bars)) + 20,
        chart_height=_CHART_HEIGHT,
        ticks=[(share, _CHART_HEIGHT * (1 - share / 100)) for share in (0, 25, 50, 75, 100)],
        matrix=_matrix(report.get("measured", {}).get("slot_matrix"), slots),
        passes=_passes(report.get("measured", {}).get("served") or []),
        measured=_plain_figures(report.get("measured", {})),
    )


def _template(name: str) -> jinja2.Template:
    made = environment()
    made.filters["shown"] = _shown
    return made.get_template(name)


# -- the wiring ------------------------------------------------------------------------------------------------


def _state_names(slots: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every state that a slot names, in the order in which a target passes through them."""
    found = {str(item[key]) for item in slots for key in ("expected", "found") if item.get(key) is not None}
    return sorted(found, key=_depth)


def _depth(name: str) -> tuple[int, int, str]:
    if name == "embed":
        return (0, 0, name)
    head, _, number = name.partition(":")
    if number.isdigit():
        return (1, int(number) + (head == "layer"), name)
    return (2, 0, name)


def _lines(slots: Sequence[Mapping[str, Any]], states: Sequence[Box], inputs: Sequence[Box]) -> list[Line]:
    place = {box.name: box.middle for box in states}
    lines = []
    for item, box in zip(slots, inputs, strict=True):
        expected, found = item.get("expected"), item.get("found")
        if expected is not None:
            same = found is None or found == expected
            lines.append(Line(place[str(expected)], box.middle, "right" if same else "declared"))
        if found is not None and found != expected:
            lines.append(Line(place[str(found)], box.middle, "found"))
    return lines


# -- acceptance ------------------------------------------------------------------------------------------------


def _bars(measured: Mapping[str, Any]) -> list[Bar]:
    rate = rate_of(measured)
    expected: list[float | None] = (measured.get("expected") or {}).get(rate) or []
    reported: list[Mapping[str, Any] | None] = _first_reading(measured).get(rate) or []
    bars = []
    for place in range(max(len(expected), len(reported))):
        wanted = expected[place] if place < len(expected) else None
        seen = (reported[place] if place < len(reported) else None) or {}
        words = f"position {place}: expected {_percent(wanted)}, reported {_percent(seen.get('value'))}"
        expects, reports, low, high = (_pixels(value) for value in (wanted, seen.get("value"), seen.get("low"), seen.get("high")))
        bars.append(Bar(_CHART_LEFT + _CHART_STEP * place, str(place), expects, reports, low, high, words))
    return bars


def rate_of(measured: Mapping[str, Any]) -> str:
    """Conditional rates are drawn where the server's figures give any; bounds on the unconditional ones where they do not."""
    reading = _first_reading(measured)
    return "conditional" if not reading or any(reading.get("conditional") or ()) else "unconditional"


def _first_reading(measured: Mapping[str, Any]) -> Mapping[str, Any]:
    readings = measured.get("reported") or [{}]
    return readings[0] if isinstance(readings[0], Mapping) else {}


def _pixels(share: float | None) -> float | None:
    return None if share is None else round(_CHART_HEIGHT * min(1.0, max(0.0, share)), 1)


def _passes(served: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each pass over a running server: which, tokens a round served and expected, rates by position of both."""
    rows = []
    for item in served:
        seen, wanted = item["reported"], item["expected"]
        rates = [(one or {}).get("value") for one in seen["conditional"]], wanted["conditional"]
        lengths = [f"{(seen['acceptance_length'] or {}).get('value') or 0:.2f}", f"{wanted['vllm_acceptance_length']:.2f}"]
        rows.append([seen["where"], f"{seen['rounds'] or 0:g}", *lengths, *(", ".join(map(_percent, row)) for row in rates)])
    return rows


# -- accuracy by slot and boundary -----------------------------------------------------------------------------


def _matrix(given: Mapping[str, Any] | None, slots: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """None if there is nothing to draw."""
    if not given or not given.get("accuracy"):
        return None
    names = [str(name) for name in given["boundaries"]]
    every = [value for row in given["accuracy"] for value in row if value is not None]
    low, high = min(every, default=0.0), max(every, default=1.0)
    rows = []
    for place, values in enumerate(given["accuracy"]):
        best = max((value for value in values if value is not None), default=None)
        declared = slots[place].get("expected") if place < len(slots) else None
        rows.append(
            [
                _cell(value, low, high, value is not None and value == best, name == declared)
                for value, name in zip(values, names, strict=True)
            ]
        )
    return {"boundaries": names, "rows": rows}


def _cell(value: float | None, low: float, high: float, best: bool, declared: bool) -> Cell:
    if value is None:
        return Cell("", "transparent", "inherit", False, declared)
    share = 0.5 if high <= low else (value - low) / (high - low)
    return Cell(_percent(value), f"hsl(200 55% {92 - 58 * share:.0f}%)", "#fff" if share > 0.55 else "#14222b", best, declared)


# -- texts -----------------------------------------------------------------------------------------------------


def _counts(hypotheses: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(name, number) for name in _ORDER if (number := sum(item["verdict"] == name for item in hypotheses))]


def _plain_figures(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Single figures, for a list; what is drawn is left out."""
    return [(name.replace("_", " "), _shown(value)) for name, value in measured.items() if not isinstance(value, list | dict)]


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not known"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_shown(part) for part in value[:12]) + (" …" if len(value) > 12 else "")
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return str(value)


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"
