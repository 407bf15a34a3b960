"""The diagnosis for a terminal: verdict, findings, wiring and hypotheses."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eyas.doctor.hypothesis import Diagnosis, Finding, Hypothesis, Tested, percent

_COLOURS = {"healthy": "green", "fault": "red", "weak-draft": "yellow", "inconclusive": "yellow"}
_SIGNS = {"confirmed": "red", "ruled out": "green", "suspected": "yellow", "cannot be tested": "dim"}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Findings first; what was ruled out below, a line each."""
    colour = _COLOURS[diagnosis.verdict]
    console.print(Panel(Text(diagnosis.summary), title=Text(diagnosis.verdict, style=f"bold {colour}"), border_style=colour))
    for number, finding in enumerate(diagnosis.findings, 1):
        console.print(_finding(number, finding))
    if diagnosis.slots:
        console.print(_wiring(diagnosis))
    if diagnosis.measured.get("accuracy") is not None:
        console.print(_figures(diagnosis))
    for line in diagnosis.signature:
        console.print(Text(f"signature: {line}"))
    console.print(_hypotheses(diagnosis.tested))
    for line in diagnosis.next_steps:
        console.print(Text(f"next: {line}", style="cyan"))
    for note in diagnosis.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"{len(diagnosis.tested)} hypotheses in {diagnosis.seconds:.1f} s", style="dim"))


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


def _hypotheses(tested: tuple[Tested, ...]) -> RenderableType:
    table = Table(title="hypotheses", title_justify="left")
    for name in ("kind", "code", "claim", "verdict", "evidence"):
        table.add_column(name, overflow="fold")
    for item in tested:
        outcome = item.outcome
        words = outcome.reason or "; ".join(part.text for part in outcome.evidence[:2])
        verdict = Text(outcome.judgement, style=_SIGNS[outcome.judgement])
        table.add_row(item.hypothesis.kind, item.hypothesis.code, item.hypothesis.claim, verdict, Text(words))
    return table
