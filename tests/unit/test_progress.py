"""What is printed of a long job where no terminal is."""

from __future__ import annotations

import io
import re

from rich.console import Console

import eyas.progress
from eyas.progress import Progress


def test_what_an_earlier_run_did_counts_but_is_not_its_rate(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(eyas.progress, "console", Console(file=written, width=200))
    now = 100.0
    monkeypatch.setattr(eyas.progress.time, "monotonic", lambda: now)
    with Progress("answering", 100_000, "answers") as progress:
        progress.found(90_000)
        for _ in range(3):
            now += 1.0
            progress.advance(1)
    found = re.search(r"answering: 90,003 of 100,000 answers, ([\d,.]+) answers/s", written.getvalue())
    assert found is not None, written.getvalue()
    assert float(found[1].replace(",", "")) == 1.0  # three in three seconds; with the resumed ones it would be ten thousands


def test_no_rate_is_named_before_a_second_has_passed(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(eyas.progress, "console", Console(file=written, width=200))
    now = 100.0
    monkeypatch.setattr(eyas.progress.time, "monotonic", lambda: now)
    with Progress("answering", 100_000, "answers") as progress:
        now += 40.0
        progress.found(90_000)
        now += 0.01
        progress.advance(2000)
    assert "92,000 of 100,000 answers, rate unknown" in written.getvalue()


def test_a_part_s_bar_takes_the_place_of_the_whole_s_and_gives_it_back(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(eyas.progress, "console", Console(file=written, width=100, force_terminal=True))
    with Progress("whole", 2, "parts") as whole:
        whole.advance(1)
        with Progress("part", 3, "texts") as part:
            part.advance(3)
        whole.advance(1)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert "3/3" in shown
    assert shown.rindex("part") < shown.rindex("2/2"), "the whole's bar is there again"
