"""The Kimi case in its small form: measured in three wirings, and what the doctor says of each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cases(made_targets: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    out = tmp_path_factory.mktemp("kimi")
    shutil.copytree(made_targets("kimi-tiny"), out / "target")
    script = ROOT / "examples" / "kimi_case" / "run.py"
    done = subprocess.run([sys.executable, script, "--out", out, "--small", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {case["name"]: case for case in json.loads(done.stdout)["cases"]}


def found(case: dict[str, Any]) -> set[tuple[str, str]]:
    return {(item["kind"], item["code"]) for item in case["doctor"]["findings"]}


def test_wrong_states_cost_acceptance_and_both_faults_are_named(cases: dict[str, dict[str, Any]]) -> None:
    served, teacher = cases["served-2-30-58"], cases["embed-2-30-wrong-teacher"]
    assert served["first_token_accuracy"] < 0.9 * teacher["first_token_accuracy"]
    assert served["acceptance_length"] < teacher["acceptance_length"]
    assert found(served) == {("A", "taps-other"), ("A", "teacher-layer")}


def test_a_wrong_teacher_alone_is_named_alone(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["embed-2-30-wrong-teacher"]
    assert case["teacher_agreement"] < 0.95
    assert found(case) == {("A", "teacher-layer")}


def test_the_right_wiring_is_acquitted(cases: dict[str, dict[str, Any]]) -> None:
    assert cases["right"]["teacher_agreement"] == 1.0
    assert found(cases["right"]) == set()


def test_the_innocent_suspects_are_ruled_out_with_numbers(cases: dict[str, dict[str, Any]]) -> None:
    for case in cases.values():
        ruled_out = {item["code"] for item in case["doctor"]["ruled_out"]}
        assert {"states-partial", "states-scattered", "context-lost", "slot-order", "pair-shift", "draft-stale"} <= ruled_out
        assert all(item["evidence"] for item in case["doctor"]["ruled_out"])
