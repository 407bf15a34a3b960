"""Hypotheses of the user's own: a command to run, and what it must give if the claim is true.

A command is run when the user asks for it (`eyas doctor case try`), never because a case file was opened.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from eyas.doctor.case import Case, Event
from eyas.errors import UserError

_KEPT = 2000  # characters of a command's output


@dataclass(frozen=True)
class Expected:
    """What is expected if the claim is true: an exit status, a text in the output, or a number in it.

    `number` is a pattern with one group; the group's value must lie in [`low`, `high`].
    """

    status: int | None = None
    contains: str | None = None
    number: str | None = None
    low: float = float("-inf")
    high: float = float("inf")

    def check(self) -> None:
        """Raises UserError if nothing is expected, or by a pattern that is none."""
        if self.status is None and self.contains is None and self.number is None:
            raise UserError("nothing is expected of the command", allowed="--status, --contains or --number with --low and --high")
        if self.number is not None:
            try:
                groups = re.compile(self.number).groups
            except re.error as error:
                raise UserError("--number is no pattern", got=self.number, allowed="a regular expression with one group") from error
            if groups != 1:
                raise UserError("--number needs exactly one group, around the number", got=self.number)

    def to_json(self) -> dict[str, Any]:
        bounds = {name: value for name, value in (("low", self.low), ("high", self.high)) if abs(value) != float("inf")}
        return {"status": self.status, "contains": self.contains, "number": self.number, **bounds}

    def judge(self, status: int, output: str) -> tuple[bool, str]:
        """Whether all came as expected, and in words what came."""
        right, words = True, []
        if self.status is not None:
            right &= status == self.status
            words.append(f"exit status {status}, expected {self.status}")
        if self.contains is not None:
            there = self.contains in output
            right &= there
            words.append(f"the output {'holds' if there else 'lacks'} {self.contains!r}")
        if self.number is not None:
            match = re.search(self.number, output)
            value = _number(match[1]) if match else None
            right &= value is not None and self.low <= value <= self.high
            words.append(f"the number is {'not there' if value is None else f'{value:g}'}, expected {self.low:g} to {self.high:g}")
        return right, "; ".join(words)


def add_own(case: Case, name: str, claim: str, command: str, expected: Expected) -> Event:
    """Raises UserError for a name that is taken or empty, or an expectation that expects nothing."""
    expected.check()
    if not name.strip() or not command.strip():
        raise UserError("a hypothesis needs a name and a command", got=f"name {name!r}, command {command!r}")
    if name in own_hypotheses(case):
        raise UserError("the case has a hypothesis of that name", got=name, remedy="give it another name: what was written stays")
    return case.add("hypothesis", {"name": name, "claim": claim or name, "command": command, "expected": expected.to_json()})


def own_hypotheses(case: Case) -> dict[str, dict[str, Any]]:
    return {event.value["name"]: event.value for event in case.events if event.kind == "hypothesis"}


def try_own(case: Case, name: str, timeout: float) -> Event:
    """Run the command in a shell, as the user would, and keep what came.

    Raises UserError for a name that the case does not have.
    """
    known = own_hypotheses(case)
    if name not in known:
        raise UserError("the case has no such hypothesis", got=name, allowed=", ".join(known) or "none yet")
    item = known[name]
    expected = Expected(**item["expected"])
    started = time.perf_counter()
    try:
        done = subprocess.run(item["command"], shell=True, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
        right, words = expected.judge(done.returncode, done.stdout + done.stderr)
        verdict, output = "confirmed" if right else "ruled out", done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        verdict, words, output = "cannot be tested", f"the command took more than {timeout:g} s", ""
    seconds = round(time.perf_counter() - started, 2)
    value = {"name": name, "claim": item["claim"], "verdict": verdict, "evidence": words, "output": output[-_KEPT:], "seconds": seconds}
    return case.add("test", value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
