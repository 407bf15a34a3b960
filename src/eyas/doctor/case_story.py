"""The story of a case, in order: as text, and as one HTML page."""

from __future__ import annotations

from typing import Any

import eyas
from eyas.doctor.case import Case, Event
from eyas.doctor.pages import environment
from eyas.errors import UserError


def story(case: Case) -> list[str]:
    """A few lines an event. Raises UserError for a case without any."""
    events = case.events
    if not events:
        raise UserError(f"{case.folder} holds no case", remedy="begin one: eyas doctor --case DIR with a target and a draft")
    return [line for event in events for line in told(event)]


def story_html(case: Case) -> str:
    """Raises UserError for a case without any event."""
    story(case)
    parts = [(event, told(event)[0], told(event)[1:], _colour(event)) for event in case.events]
    return environment().get_template("case.html.j2").render(parts=parts, name=case.folder.resolve().name, version=eyas.__version__)


def to_json(case: Case) -> dict[str, Any]:
    return {"case": case.folder.name, "events": [{"number": event.number, "kind": event.kind, **event.value} for event in case.events]}


def told(event: Event) -> list[str]:
    """One event in lines, the first its head."""
    value = event.value
    head = f"{event.number}. {value['time']}"
    if event.kind == "hypothesis":
        return [f"{head} asked: {value['claim']}", f"   to be tried by: {value['command']}"]
    if event.kind == "test":
        return [f"{head} tried: {value['claim']}: {value['verdict']}", f"   {value['evidence']} ({value['seconds']:.1f} s)"]
    diagnosis = value["diagnosis"]
    note = f" ({value['note']})" if value["note"] else ""
    lines = [f"{head} examined{note}: {diagnosis['verdict']}. {diagnosis['summary']}"]
    lines += [f"   {line}" for line in value["moved"]]
    lines += [_finding(finding) for finding in diagnosis["findings"]]
    lines += [f"   its figures look like: {line}" for line in diagnosis["signature"]]
    open_ones = [item["claim"] for item in diagnosis["hypotheses"] if item["verdict"] == "suspected"]
    lines += [f"   still suspected: {'; '.join(dict.fromkeys(open_ones))}"] if open_ones else []
    return lines


def _finding(finding: dict[str, Any]) -> str:
    since = f", known since run {finding['of_run']}" if "of_run" in finding else ""
    evidence = next((item["text"] for item in finding["evidence"]), "")
    return f"   {finding['kind']} {finding['title']} ({finding['subject']}{since}): {evidence}"


def _colour(event: Event) -> str:
    if event.kind == "run":
        return str(event.value["diagnosis"]["verdict"])
    return {"confirmed": "fault", "ruled out": "healthy"}.get(event.value.get("verdict", ""), "open")
