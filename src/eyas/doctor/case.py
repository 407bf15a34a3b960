"""The case file: what several examinations of one trouble showed, in order, and what moved from each to the next.

    DIR/0001-run.json          one event a file, numbered; never changed afterwards
    DIR/0002-hypothesis.json   a hypothesis of the user's own: claim, command, what is expected of it
    DIR/0003-test.json         that command was run, and what came of it

A run takes over what an earlier one found out about things that have not changed since.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eyas
from eyas.doctor.case_inputs import changed_inputs, fingerprints, running, unchanged_codes
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis
from eyas.doctor.runner import run
from eyas.errors import UserError
from eyas.files import exclusive, read_json, write_json, writing

FORMAT = 1
_FILE = re.compile(r"(\d{4})-(run|hypothesis|test)\.json$")


@dataclass(frozen=True)
class Event:
    """`kind` is run, hypothesis or test; `value` is what its file holds."""

    number: int
    kind: str
    value: dict[str, Any]


class Case:
    """A folder of events, in order. Raises UserError for a folder that holds anything else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise UserError("--case is not a folder", got=str(folder))
        others = (
            [path.name for path in folder.iterdir() if _FILE.match(path.name) is None and not path.name.startswith(".")]
            if folder.is_dir()
            else []
        )
        if others:
            raise UserError(f"{folder} is no case file", got=sorted(others)[:4], remedy="name a folder of its own for the case")

    @property
    def events(self) -> list[Event]:
        """Raises UserError for a file that is damaged or of another version."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            match = _FILE.match(path.name)
            value = read_json(path, "an event of the case")
            if match is None or value.get("case_format") != FORMAT:
                raise UserError(f"{path} is no event of a case", got=value.get("case_format"), allowed=FORMAT)
            found.append(Event(int(match[1]), match[2], value))
        return found

    def last(self, kind: str) -> Event | None:
        return next((event for event in reversed(self.events) if event.kind == kind), None)

    def add(self, kind: str, value: Mapping[str, Any]) -> Event:
        """Append one event. Raises UserError if another process writes the case."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder):
            number = max((event.number for event in self.events), default=0) + 1
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            whole = {"case_format": FORMAT, "time": now, "eyas": eyas.__version__, **value}
            write_json(self.folder / f"{number:04d}-{kind}.json", whole)
        return Event(number, kind, whole)


def examine_for(case: Case, exhibits: Exhibits, options: Options, note: str = "") -> tuple[dict[str, Any], Event]:
    """Examine what changed since the last run, and keep the whole. Returns the diagnosis's JSON and the event.

    Hypotheses all of whose exhibits are as they were are not tested again: the earlier answer stands, and says of which run.
    """
    exhibits.check()
    options.check()
    inputs = fingerprints(exhibits)
    before = case.last("run")
    same = _comparable(before, options)
    codes = unchanged_codes(before.value["inputs"], inputs) if before is not None and same else ()
    fresh = run(exhibits, dataclasses.replace(options, skip=(*options.skip, *codes)))
    value = fresh.to_json() if before is None else joined(before, fresh, codes)
    moved = [*what_moved(before.value, inputs, value), *own_claims(case)] if before is not None else []
    found_by = {**(before.value["found_by"] if before is not None else {}), **_found_by(fresh)}
    event = {"note": note, "inputs": inputs, "options": _chosen(options), "moved": moved, "found_by": found_by, "diagnosis": value}
    return value, case.add("run", event)


def joined(before: Event, fresh: Diagnosis, codes: tuple[str, ...]) -> dict[str, Any]:
    """The new diagnosis with the earlier answers on `codes`, each marked with the run that they are of."""
    old, value = before.value["diagnosis"], fresh.to_json()

    def kept(items: list[dict[str, Any]], asked_by: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        return [{"of_run": before.number, **item} for item in items if set(asked_by.get(item["code"], [item["code"]])) <= set(codes)]

    value["hypotheses"] += kept(old["hypotheses"], {})
    value["findings"] += kept(old["findings"], before.value["found_by"])
    if codes:
        value["measured"] = {**old["measured"], **value["measured"]}
        value["slots"] = value["slots"] or old["slots"]
    replayed = any(item["depth"] == "replay" and "of_run" not in item for item in value["hypotheses"])
    if value["findings"]:
        value["verdict"] = "fault"
        value["summary"] = "; ".join(f"{item['title']} ({item['subject']})" for item in value["findings"][:3]) + "."
    elif codes and not replayed and old["verdict"] != "fault":
        value["verdict"], value["summary"] = old["verdict"], old["summary"]
    return value


def _found_by(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Codes of the hypotheses that found each fault: a test may find another cause than the one that it asked for."""
    found: dict[str, set[str]] = {}
    for item in diagnosis.tested:
        for fault in item.outcome.faults:
            found.setdefault(fault.code, set()).add(item.hypothesis.code)
    return {code: sorted(names) for code, names in found.items()}


def what_moved(before: Mapping[str, Any], inputs: Mapping[str, str], now: Mapping[str, Any]) -> list[str]:
    """In words: exhibits that changed, figures, findings that came, went or stayed, answers that turned."""
    changed, asked = changed_inputs(before["inputs"], inputs), running(inputs)
    lines = [f"changed: {', '.join(changed)}"] if changed else ["nothing that was given has changed"]
    lines += [f"asked again: {', '.join(asked)}"] if asked and not changed else []
    old = before["diagnosis"]
    lines += _figures_moved(old["measured"], now["measured"])
    was, is_now = ({(item["code"], item["subject"]) for item in side["findings"]} for side in (old, now))
    for words, items in (("gone", was - is_now), ("new", is_now - was), ("still there", was & is_now)):
        lines += [f"{words}: {', '.join(f'{code} ({subject})' for code, subject in sorted(items))}"] if items else []
    return lines + _answers_turned(old["hypotheses"], now["hypotheses"])


def own_claims(case: Case) -> list[str]:
    """Where the user's own hypotheses stand: they are tried when the user asks for it, so a run only recalls them."""
    stand: dict[str, str] = {}
    for event in case.events:
        if event.kind == "hypothesis":
            stand[event.value["name"]] = f"{event.value['claim']}: not tried yet"
        elif event.kind == "test":
            stand[event.value["name"]] = f"{event.value['claim']}: {event.value['verdict']} when it was tried in {event.number}"
    return list(stand.values())


def _figures_moved(old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    past, lines = _figures(old), []
    for name, values in _figures(now).items():
        before = past.get(name)
        if before and values and any(abs(a - b) > 0.0005 for a, b in zip(before, values, strict=False)):
            lines.append(f"{name} {_row(before)} -> {_row(values)}")
    return lines


def _figures(measured: Mapping[str, Any]) -> dict[str, list[float]]:
    """Shares and lengths by name; the server's first reading among them."""
    found = {name.replace("_", " "): [value] for name, value in measured.items() if isinstance(value, float)}
    readings = measured.get("reported") or []
    if readings and isinstance(readings[0], Mapping):
        length = (readings[0].get("acceptance_length") or {}).get("value")
        rates = [item["value"] for item in readings[0].get("conditional") or () if item and item.get("value") is not None]
        found |= {"reported acceptance length": [length] if length else [], "reported acceptance by position": rates}
    return found


def _row(values: list[float]) -> str:
    return "/".join(f"{value:.3f}" for value in values)


def _answers_turned(old: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    past = {(item["code"], item["claim"]): item["verdict"] for item in old}
    lines = []
    for item in now:
        verdict = past.get((item["code"], item["claim"]))
        if verdict is not None and verdict != item["verdict"]:
            lines.append(f"{item['claim']}: {verdict} -> {item['verdict']}")
        elif verdict == "suspected":
            lines.append(f"{item['claim']}: still suspected")
    return lines


def _comparable(before: Event | None, options: Options) -> bool:
    """Answers of another version, or to other questions, are asked anew."""
    return before is not None and before.value["eyas"] == eyas.__version__ and before.value["options"] == _chosen(options)


def _chosen(options: Options) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(options).items()}
