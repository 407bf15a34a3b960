"""The diagnosis for a terminal. What matters most stands last, where the eye is when the command ends."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eyas.doctor.hypothesis import Diagnosis, Finding, Hypothesis, Tested, percent

_COLOURS = {"healthy": "green", "fault": "red", "weak-draft": "yellow", "inconclusive": "yellow"}
_SIGNS = {"ruled out": "green", "suspected": "yellow"}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """What was ruled out and what could not be tested, then wiring and figures, then the findings and the verdict."""
    for judgement in ("ruled out", "suspected"):
        some = [item for item in diagnosis.tested if item.outcome.judgement == judgement]
        if some:
            console.print(_hypotheses(judgement, some))
    for reason, codes in _untested(diagnosis.tested).items():
        console.print(Text(f"cannot be tested: {reason}: {', '.join(codes)}", style="dim"))
    for note in diagnosis.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"{len(diagnosis.tested)} hypotheses in {diagnosis.seconds:.1f} s", style="dim"))
    if diagnosis.slots:
        console.print(_wiring(diagnosis))
    if diagnosis.measured.get("accuracy") is not None:
        console.print(_figures(diagnosis))
    for line in diagnosis.signature:
        console.print(Text(f"signature: {line}"))
    for line in diagnosis.next_steps:
        console.print(Text(f"next: {line}", style="cyan"))
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print(_finding(number, finding))
    colour = _COLOURS[diagnosis.verdict]
    console.print(Panel(Text(diagnosis.summary), title=Text(diagnosis.verdict, style=f"bold {colour}"), border_style=colour))


def show_plan(hypotheses: list[tuple[Hypothesis, str | None]], console: Console) -> None:
    """What would be tested, with what, and what it costs; the second part says what is missing."""
    table = Table(title="what would be tested, in this order", title_justify="left")
    for name in ("depth", "kind", "code", "test", "if true", "about", "missing"):
        table.add_column(name, overflow="fold")
    for item, missing in hypotheses:
        cost = f"{item.seconds:g} s" if item.seconds else ""
        table.add_row(item.depth, item.kind, item.code, item.test, item.prediction, cost, missing or "")
    console.print(table)


def _finding(number: int, finding: Finding) -> RenderableType:
    verified = " (fix applied in memory and measured)" if finding.verified else ""
    head = Text(f"{number}. {finding.title}: {finding.subject}", style="bold")
    lines = [Text(f"{finding.code}, kind {finding.kind}{verified}; docs/doctor/{finding.code}.md", style="dim")]
    lines += [Text(item.text) for item in finding.evidence[:5]]
    lines.append(Text(f"remedy: {finding.remedy}", style="cyan"))
    return Group(head, *(Padding(line, (0, 0, 0, 3)) for line in lines), Text(""))


def _wiring(diagnosis: Diagnosis) -> RenderableType:
    """Target state -> slot of fc: as declared, and as it was found to be."""
    table = Table(title="wiring: states and slots of fc", title_justify="left")
    for name in ("declared", "", "slot", "", "found"):
        table.add_column(name)
    for slot in diagnosis.slots:
        same = slot.found in (None, slot.expected)
        arrow, back = ("--->", "<---") if same else ("-/->", "<===")
        colour = "green" if same else "red"
        place = (Text(arrow, style=colour), f"slot {slot.slot}", Text(back, style=colour))
        table.add_row(slot.expected or "?", *place, slot.found or "not known")
    return table


def _figures(diagnosis: Diagnosis) -> RenderableType:
    table = Table(title="on real text", title_justify="left")
    for name in ("", "as given", "with the fixes"):
        table.add_column(name)
    for words, key in (("first token right", "accuracy"), ("second token right, given the first", "accuracy_step_1")):
        before, after = diagnosis.measured.get(f"{key}_as_given"), diagnosis.measured.get(key)
        table.add_row(words, "" if before is None else percent(before), "" if after is None else percent(after))
    return table


def _hypotheses(judgement: str, tested: list[Tested]) -> RenderableType:
    table = Table(title=Text(f"{judgement}: {len(tested)}", style=_SIGNS[judgement]), title_justify="left")
    for name, ratio in (("kind", None), ("code", 3), ("claim", 4), ("evidence", 7)):
        table.add_column(name, overflow="fold", ratio=ratio)
    for item in tested:
        words = "; ".join(part.text for part in item.outcome.evidence[:2]) or item.outcome.reason
        table.add_row(item.hypothesis.kind, item.hypothesis.code, item.hypothesis.claim, Text(words))
    return table


def _untested(tested: tuple[Tested, ...]) -> dict[str, list[str]]:
    """Codes by what kept them from being tested."""
    found: dict[str, list[str]] = {}
    for item in tested:
        if item.outcome.judgement == "cannot be tested":
            codes = found.setdefault(item.outcome.reason, [])
            if item.hypothesis.code not in codes:
                codes.append(item.hypothesis.code)
    return found
