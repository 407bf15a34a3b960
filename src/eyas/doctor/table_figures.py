"""Figures of acceptance in the table that a benchmark's client prints at its end, a figure a line. Rates there are in percent."""

from __future__ import annotations

import re

from eyas.doctor.server_figures import ServerFigures

_LINE = re.compile(r"^ *([A-Za-z][A-Za-z ]*(?:\(%\)| \d+)?): +(\d+(?:\.\d+)?) *$", re.MULTILINE)
_MOST_POSITIONS = 64


def table_figures(text: str, where: str, num_draft_tokens: int | None) -> list[ServerFigures]:
    """One entry if the text has a line on acceptance length, none if it has not."""
    rows = {name.strip().lower(): float(value) for name, value in _LINE.findall(text)}
    length = next((rows[name] for name in ("acceptance length", "accept length") if name in rows), None)
    if length is None:
        return []
    rates = [rows[f"position {place}"] / 100 for place in range(_MOST_POSITIONS) if f"position {place}" in rows]
    rate = rows.get("acceptance rate (%)")
    figures = ServerFigures(
        "vllm" if "drafts" in rows else "unknown",
        where,
        num_draft_tokens=len(rates) or num_draft_tokens,
        rounds=rows.get("drafts"),
        proposed=rows.get("draft tokens"),
        accepted=rows.get("accepted tokens"),
        position_rates=tuple(rates),
        acceptance_length=length,
        acceptance_rate=None if rate is None else rate / 100,
    )
    return [figures]
