"""Put two evaluations of one draft side by side into docs/story.md, and keep both: python table.py RIGHT.json WRONG.json KEPT.json PAGE"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from eyas.files import read_json, write_json, write_text
from eyas.marks import fill

WRITER = "examples/story/run.sh"


def table(right: dict[str, Any], wrong: dict[str, Any]) -> str:
    """A Markdown table of the figures without looping answers; `wrong` was fed other states than `right`."""
    if right["as_if"] is not None or wrong["as_if"] is None:
        raise SystemExit("RIGHT must be an evaluation on the draft's own states, WRONG one with --as-if")
    columns = [result["loops"]["without_loops"] for result in (right, wrong)]
    rows = [
        ("states fed", [f"`{right['taps']}`", f"`{wrong['as_if']}`"]),
        ("first-token accuracy", [f"{100 * column['first_token_accuracy']:.1f} %" for column in columns]),
        ("tokens per round, predicted", [f"{column['acceptance_length_predicted']:.2f}" for column in columns]),
        ("tokens per round, measured", [f"{column['acceptance_length_measured']:.2f}" for column in columns]),
        ("rounds measured", [str(column["rounds"]) for column in columns]),
    ]
    head = ["| | what it was trained on | the neighbours |", "| --- | --- | --- |"]
    return "\n".join(head + [f"| {name} | {left} | {other} |" for name, (left, other) in rows])


if __name__ == "__main__":
    right_path, wrong_path, kept_path, page_path = map(Path, sys.argv[1:])
    right, wrong = (read_json(path, "the evaluation") for path in (right_path, wrong_path))
    content = table(right, wrong)
    page = fill(page_path.read_text(encoding="utf-8"), "table", WRITER, content)
    write_json(kept_path, {"right": right, "wrong": wrong})
    write_text(page_path, page)
    print(content)
