"""The doctor's grades: recall, precision and time on planted faults, pairs of faults and lawful differences; JSON out.

    python benchmarks/doctor.py --out doctor.json                         the suite of tests/faults
    python benchmarks/doctor.py --set DIR --important --out doctor.json   the most important ones in a set of one's own

A case's processor and wall time hold the planting as well; doctor_seconds are the examination's alone.

Recall: of the planted faults, those named first, by kind and by code. Precision: of all sets in which something was found,
those in which something was planted. `--set` names a folder with target, draft, dump and chats.jsonl; a dump of some fifty
chats is enough, and is held in memory several times over.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import eyas
from eyas.doctor.catalog import CATALOG
from eyas.doctor.exhibits import Options
from eyas.files import write_json
from eyas.progress import console
from seeded.examine import ROWS, Grade, grade_fault, grade_healthy, grade_pair
from seeded.healthy import HEALTHY
from seeded.pairs import PAIRS
from seeded.registry import FAULTS
from seeded.sets import FAMILIES, Set, make_set

IMPORTANT = (
    "taps-shifted: declared one layer further",
    "taps-shifted: the dump's states are those of a layer later",
    "teacher-layer: labels from the layer before the last",
    "teacher-norm: labels' state lacks the final norm",
    "slot-order: columns of fc reversed",
    "half-order: [hidden | embedding] where [embedding | hidden] belongs",
    "norm-placement: residual taken behind the norm",
    "norm-feedback: normed state fed back",
    "pair-shift: states one position late",
    "rope-theta: theta left at 10000",
    "map-other: no map: the first ids",
    "head-foreign: lm_head at random",
    "states-partial: half of the last branch is missing",
    "the story: taps and teacher",
    "as they are",
)


@dataclass(frozen=True)
class Case:
    """`group` is fault, pair or healthy; `kind` the letter of a single fault."""

    group: str
    kind: str
    name: str
    family: str
    grade: Callable[[Set, int], Grade]


def cases(families: Iterable[str]) -> list[Case]:
    found = [
        Case("fault", CATALOG[item.code].kind, f"{item.code}: {item.name}", family, partial(grade_fault, item))
        for item in FAULTS
        for family in item.families
    ]
    found += [Case("pair", "", item.name, item.family, partial(grade_pair, item)) for item in PAIRS]
    found += [Case("healthy", "", item.name, family, partial(grade_healthy, item)) for item in HEALTHY for family in item.families]
    return [case for case in found if case.family in set(families)]


def examine(todo: list[Case], folder_of: Callable[[str], Path], num_rows: int) -> list[dict[str, Any]]:
    """One row a case, in order. A doctor that breaks is graded wrong, with the error."""
    rows = []
    for number, case in enumerate(todo, start=1):
        with tempfile.TemporaryDirectory() as work:
            folder = folder_of(case.family)
            parts = {"target": folder / "target", "draft": folder / "draft", "dump": folder / "dump", "data": folder / "chats.jsonl"}
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                grade = case.grade(Set(family=case.family, work=Path(work), **parts), num_rows)
            except Exception as error:  # what the doctor must never do
                grade = Grade(False, False, (f"{type(error).__name__}: {error}",), "traceback")
            seconds = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
        row = {"group": case.group, "kind": case.kind, "name": case.name, "family": case.family, "verdict": grade.verdict}
        row |= {"right_kind": grade.right_kind, "right_code": grade.right_code, "told": list(grade.told)}
        row |= {"doctor_seconds": grade.seconds, **seconds}
        rows.append(row)
        if not grade.right:
            console.print(f"{number}/{len(todo)} {case.name} ({case.family}): {grade.words()}", markup=False, highlight=False)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares are None where nothing was tried."""
    faults, pairs, healthy = ([row for row in rows if row["group"] == group] for group in ("fault", "pair", "healthy"))
    alarms = sum(bool(row["told"]) for row in healthy)
    found = sum(bool(row["told"]) for row in (*faults, *pairs))
    return {
        "faults": len(faults),
        "recall_by_kind": _share([row["right_kind"] for row in faults]),
        "recall_by_code": _share([row["right_kind"] and row["right_code"] for row in faults]),
        "pairs": len(pairs),
        "pairs_both_found": _share([row["right_kind"] and row["right_code"] for row in pairs]),
        "healthy": len(healthy),
        "false_alarms": alarms,
        "healthy_right": _share([row["right_kind"] for row in healthy]),
        "precision": found / (found + alarms) if found + alarms else None,
        "cpu_seconds": sum(row["cpu_seconds"] for row in rows),
        "seconds_per_case": sum(row["wall_seconds"] for row in rows) / max(1, len(rows)),
        "by_kind": {
            kind: _share([row["right_kind"] and row["right_code"] for row in faults if row["kind"] == kind]) for kind in _kinds(faults)
        },
    }


def _kinds(rows: list[dict[str, Any]]) -> list[str]:
    return sorted({row["kind"] for row in rows})


def _share(hits: list[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--set", type=Path, help="a healthy set of one's own")
    parser.add_argument("--family", default="llama", help="the family whose faults are planted in --set")
    parser.add_argument("--keep", type=Path, help="keep the tiny sets here, and use those that are there")
    parser.add_argument("--match", default="", help="only cases whose name holds this")
    parser.add_argument("--important", action="store_true", help="only the dozen that matter most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        made = options.keep or Path(temporary)

        def folder_of(family: str) -> Path:
            if options.set is not None:
                return Path(options.set)
            if not (made / family / "draft").exists():
                make_set(family, made / family)
            return Path(made / family)

        todo = [case for case in cases([options.family] if options.set else FAMILIES) if options.match in case.name]
        todo = [case for case in todo if not options.important or case.name in IMPORTANT]
        num_rows = Options().rows if options.set else ROWS
        rows = examine(todo, folder_of, num_rows)
    about = {"eyas": eyas.__version__, "machine": platform.machine(), "set": options.set.name if options.set else "tiny"}
    value = {**about, **summary(rows), "cases": rows}
    write_json(options.out, value)
    print(json.dumps({name: part for name, part in value.items() if name != "cases"}, indent=2))


if __name__ == "__main__":
    main()
