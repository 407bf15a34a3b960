"""The doctor names the fault that was planted, both of two, and nothing where nothing is wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from eyas.doctor.catalog import CATALOG
from seeded.equivalents import SAME_CAUSE
from seeded.examine import grade_fault, grade_healthy, grade_pair
from seeded.healthy import HEALTHY, Healthy
from seeded.pairs import PAIRS, Pair
from seeded.registry import FAULTS, Fault

# A fault that takes a replay to see is planted in one of its families, in turn, which keeps the suite below five minutes;
# benchmarks/doctor.py plants it in all of them.
CASES = [
    (fault, family)
    for number, fault in enumerate(FAULTS)
    for place, family in enumerate(fault.families)
    if "replay" not in fault.depths or place == number % len(fault.families)
]
LAWFUL = [(item, family) for item in HEALTHY for family in item.families]


def name_of(value: object) -> str:
    if isinstance(value, Fault):
        return f"{value.code}: {value.name}"
    return value.name if isinstance(value, Healthy | Pair) else str(value)


@pytest.mark.parametrize(("fault", "family"), CASES, ids=name_of)
def test_the_planted_fault_is_named_first(fault: Fault, family: str, set_of):
    grade = grade_fault(fault, set_of(family))
    assert grade.right, f"planted {fault.code} ({CATALOG[fault.code].kind}); told {grade.words()}"


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_both_faults_of_a_pair_are_named(pair: Pair, set_of):
    grade = grade_pair(pair, set_of(pair.family))
    assert grade.right, f"planted {pair.codes}; told {grade.words()}"


@pytest.mark.parametrize(("item", "family"), LAWFUL, ids=name_of)
def test_lawful_differences_are_no_faults(item: Healthy, family: str, set_of):
    grade = grade_healthy(item, set_of(family))
    assert grade.right, f"nothing is wrong; told {grade.words()}"


def test_the_suite_is_as_large_as_it_says():
    assert len(CASES) >= 120
    assert len(PAIRS) >= 20
    assert len(LAWFUL) >= 20
    assert len(set(map(name_of, FAULTS))) == len(FAULTS), "two faults of one name"
    assert {CATALOG[fault.code].kind for fault in FAULTS} >= set("ABCDEFGHIJKLMNOPQRS")


def test_the_table_of_equal_causes_names_codes_that_exist():
    for row, why in SAME_CAUSE:
        assert row <= set(CATALOG), row - set(CATALOG)
        assert len(row) > 1 and why


def test_the_benchmark_names_faults_that_exist():
    path = Path(__file__).parents[2] / "benchmarks" / "doctor.py"
    spec = importlib.util.spec_from_file_location("benchmark_doctor", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    assert set(module.IMPORTANT) <= {name_of(item) for item in (*FAULTS, *PAIRS, *HEALTHY)}
    rows = [
        {"group": "fault", "kind": "A", "right_kind": True, "right_code": False, "told": ["x"], "cpu_seconds": 1.0, "wall_seconds": 1.0},
        {"group": "fault", "kind": "B", "right_kind": True, "right_code": True, "told": ["y"], "cpu_seconds": 1.0, "wall_seconds": 1.0},
        {"group": "healthy", "kind": "", "right_kind": False, "right_code": False, "told": ["z"], "cpu_seconds": 1.0, "wall_seconds": 1.0},
    ]
    found = module.summary(rows)
    assert (found["recall_by_kind"], found["recall_by_code"], found["false_alarms"]) == (1.0, 0.5, 1)
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["by_kind"] == {"A": 0.0, "B": 1.0}
