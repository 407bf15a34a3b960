"""The page on engines is what the tables say, and measured figures survive its being written again."""

from __future__ import annotations

from pathlib import Path

from eyas.engines.page import BEGIN, END, measured_part, page

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(measured_part(text)), "run make docs"


def test_what_was_measured_is_kept() -> None:
    measured = f"{BEGIN}\n| a | b |\n{END}"
    assert measured in page(measured_part(f"before {measured} after"))
    assert measured_part("") in page(measured_part(""))
