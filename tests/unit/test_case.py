"""The case file: what is kept, what is asked again, what moved, and the user's own hypotheses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eyas.doctor import case as case_module
from eyas.doctor.case import Case, examine_for
from eyas.doctor.case_inputs import fingerprints, reads, unchanged_codes
from eyas.doctor.case_own import Expected, add_own, own_hypotheses, try_own
from eyas.doctor.case_story import story, story_html, to_json
from eyas.doctor.checks import all_hypotheses
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis, Evidence, Fault, Finding, Outcome, Tested
from eyas.errors import UserError

TAPS = Finding("taps-shifted", "A", "a neighbour's states", "draft", (Evidence("34.1 % -> 76.9 %"),), "set the ids", True, 0.9)
METRIC = Finding("metric-impossible", "R", "cannot be true", "metrics", (Evidence("a rate of 1.42"),), "read the counts", False, 0.5)

_ASKED_BY = {"taps-shifted": "taps-other"}  # the search for other taps may find a shift


def reading(first: float) -> dict[str, Any]:
    values = [{"value": value, "low": 0.0, "high": 1.0} for value in (first, 0.2)]
    return {"acceptance_length": {"value": 1.3}, "conditional": values}


class Doctor:
    """Stands for the examination: it says what it is told to, of the codes that are not skipped, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Options] = []
        self.findings: tuple[Finding, ...] = (TAPS,)
        self.measured: dict[str, Any] = {"accuracy": 0.341, "reported": [reading(0.30)]}
        self.suspect = True

    def __call__(self, exhibits: Exhibits, options: Options) -> Diagnosis:
        self.asked.append(options)
        findings = tuple(item for item in self.findings if _ASKED_BY.get(item.code, item.code) not in options.skip)
        tested = []
        for item in all_hypotheses():
            if item.code in options.skip:
                continue
            suspected = item.code == "teacher-layer" and self.suspect
            codes = [finding.code for finding in findings if _ASKED_BY.get(finding.code, finding.code) == item.code]
            tested.append(Tested(item, self.outcome(codes, suspected), 0.0))
        verdict = "fault" if findings else "healthy"
        return Diagnosis(verdict, "said", findings, tuple(tested), measured=self.measured)  # type: ignore[arg-type]

    def outcome(self, codes: list[str], suspected: bool) -> Outcome:
        if codes:
            return Outcome("confirmed", faults=tuple(Fault(code, "draft", (), "mend it") for code in codes))
        return Outcome("suspected" if suspected else "ruled out")


@pytest.fixture
def doctor(monkeypatch) -> Doctor:
    found = Doctor()
    monkeypatch.setattr(case_module, "run", found)
    return found


@pytest.fixture
def exhibits(tmp_path: Path) -> Exhibits:
    for name in ("draft", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "metrics.txt").write_text("vllm:spec_decode_num_drafts_total 3\n")
    return Exhibits(target=str(tmp_path / "target"), draft=tmp_path / "draft", metrics=tmp_path / "metrics.txt")


def edit(exhibits: Exhibits, name: str) -> None:
    path = Path(str(getattr(exhibits, name)))
    (path if path.is_file() else path / "config.json").write_text('{"changed": 1}')


def test_nothing_is_asked_twice_if_nothing_changed(tmp_path, doctor, exhibits):
    case = Case(tmp_path / "case")
    first, _ = examine_for(case, exhibits, Options(), "before the restart")
    again, event = examine_for(case, exhibits, Options(), "after the restart")
    assert set(doctor.asked[1].skip) == {item.code for item in all_hypotheses()}
    assert again["verdict"] == "fault"
    assert [item["code"] for item in again["findings"]] == ["taps-shifted"]
    assert all(item["of_run"] == 1 for item in again["hypotheses"])
    assert event.value["moved"][0] == "nothing that was given has changed"
    assert any("still there: taps-shifted (draft)" in line for line in event.value["moved"])
    third, _ = examine_for(case, exhibits, Options())
    assert third["hypotheses"][0]["of_run"] == 1, "the run that really asked"
    assert len(first["hypotheses"]) == len(third["hypotheses"])


def test_only_what_reads_the_changed_file_is_asked_again(tmp_path, doctor, exhibits):
    case = Case(tmp_path / "case")
    examine_for(case, exhibits, Options())
    edit(exhibits, "metrics")
    doctor.findings = (METRIC,)
    value, _ = examine_for(case, exhibits, Options())
    skipped = set(doctor.asked[1].skip)
    assert "metric-impossible" not in skipped
    assert {"keys-differ", "map-broken"} <= skipped
    assert {item["code"] for item in value["findings"]} == {"metric-impossible", "taps-shifted"}


def test_a_changed_draft_is_examined_anew_and_what_moved_is_told(tmp_path, doctor, exhibits):
    case = Case(tmp_path / "case")
    examine_for(case, exhibits, Options())
    edit(exhibits, "draft")
    doctor.findings, doctor.measured, doctor.suspect = (), {"accuracy": 0.769, "reported": [reading(0.31)]}, True
    value, event = examine_for(case, exhibits, Options(), "ids [-1, 2, 30]")
    moved = event.value["moved"]
    assert value["verdict"] == "healthy"
    assert moved[0] == "changed: draft"
    assert "accuracy 0.341 -> 0.769" in moved
    assert "reported acceptance by position 0.300/0.200 -> 0.310/0.200" in moved
    assert "gone: taps-shifted (draft)" in moved
    assert any(line.endswith("confirmed -> ruled out") for line in moved)
    assert any(line.endswith("still suspected") for line in moved)


def test_other_questions_are_not_answered_from_the_file(tmp_path, doctor, exhibits):
    case = Case(tmp_path / "case")
    examine_for(case, exhibits, Options(depths=("static",)))
    examine_for(case, exhibits, Options())
    assert doctor.asked[1].skip == ()


def test_the_story_is_told_in_order(tmp_path, doctor, exhibits):
    case = Case(tmp_path / "case")
    examine_for(case, exhibits, Options(), "first look")
    add_own(case, "capture", "the capture point is <wrong>", "echo accept 0.31", Expected(number=r"accept ([\d.]+)", high=0.4))
    event = try_own(case, "capture", 60.0)
    assert event.value["verdict"] == "confirmed"
    examine_for(case, exhibits, Options())
    add_own(case, "ranks", "ranks disagree", "true", Expected(status=0))
    examine_for(case, exhibits, Options())
    moved = case.events[-1].value["moved"]
    assert moved[-2:] == ["the capture point is <wrong>: confirmed when it was tried in 3", "ranks disagree: not tried yet"]
    lines = "\n".join(story(case))
    places = [lines.index(words) for words in ("(first look): fault", "asked: the capture point", "tried: the capture point", "4. ")]
    assert places == sorted(places)
    assert "a neighbour's states (draft, known since run 1)" in lines
    page = story_html(case)
    assert "&lt;wrong&gt;" in page
    assert "<wrong>" not in page
    assert [item["kind"] for item in to_json(case)["events"]] == ["run", "hypothesis", "test", "run", "hypothesis", "run"]


@pytest.mark.parametrize(
    ("command", "expected", "verdict"),
    [
        ("exit 3", Expected(status=3), "confirmed"),
        ("exit 3", Expected(status=0), "ruled out"),
        ("echo yes", Expected(contains="no"), "ruled out"),
        ("echo rate 0.7", Expected(number=r"rate ([\d.]+)", low=0.6), "confirmed"),
        ("echo rate x", Expected(number=r"rate ([\d.]+)", low=0.6), "ruled out"),
        ("sleep 20", Expected(status=0), "cannot be tested"),
    ],
)
def test_a_command_is_judged_by_what_is_expected(tmp_path, command, expected, verdict):
    case = Case(tmp_path / "case")
    add_own(case, "mine", "", command, expected)
    assert try_own(case, "mine", 15.0 if verdict != "cannot be tested" else 0.5).value["verdict"] == verdict


def test_what_cannot_be_kept_is_refused(tmp_path):
    case = Case(tmp_path / "case")
    for expected in (Expected(), Expected(number="("), Expected(number="no group")):
        with pytest.raises(UserError):
            add_own(case, "mine", "claim", "true", expected)
    add_own(case, "mine", "claim", "true", Expected(status=0))
    with pytest.raises(UserError, match="of that name"):
        add_own(case, "mine", "claim", "true", Expected(status=0))
    with pytest.raises(UserError, match="no such hypothesis"):
        try_own(case, "yours", 1.0)
    assert list(own_hypotheses(case)) == ["mine"]


def test_a_folder_of_other_things_is_no_case(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="no case file"):
        Case(tmp_path)
    with pytest.raises(UserError, match="holds no case"):
        story(Case(tmp_path / "none"))
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "0001-run.json").write_text("{}")
    with pytest.raises(UserError, match="no event of a case"):
        story(Case(tmp_path / "case"))


def test_hashes_follow_contents(tmp_path, exhibits):
    before = fingerprints(exhibits)
    assert fingerprints(exhibits) == before
    edit(exhibits, "draft")
    after = fingerprints(exhibits)
    assert {name for name in before if before[name] != after[name]} == {"draft"}
    assert fingerprints(Exhibits(target="some/model"))["target"] == "name some/model"


def test_every_hypothesis_reads_something_that_can_be_given():
    names = {"target", "draft", "dump", "data", "engine", "server", "metrics", "log"}
    for item in all_hypotheses():
        assert reads(item) <= names, item.code
    assert unchanged_codes({"draft": "a"}, {"draft": "b"}) != tuple(item.code for item in all_hypotheses())


def test_a_running_server_is_asked_again_each_time(tmp_path, doctor, exhibits):
    """Its address says nothing of what runs there: it may have been restarted with other weights."""
    case = Case(tmp_path / "case")
    served = Exhibits(target=exhibits.target, draft=exhibits.draft, server="http://127.0.0.1:1")
    examine_for(case, served, Options(), "before the restart")
    _, event = examine_for(case, served, Options(), "after the restart")
    assert event.value["moved"][:2] == ["nothing that was given has changed", "asked again: server"]
    again = {item.code for item in all_hypotheses()} - set(doctor.asked[1].skip)
    assert {item.code for item in all_hypotheses() if "server" in item.needs} <= again
    assert "map-broken" not in again
    pages = Exhibits(metrics="http://127.0.0.1:1/metrics")
    assert unchanged_codes(fingerprints(pages), fingerprints(pages)) != tuple(item.code for item in all_hypotheses())


WRITER = """
import sys
from pathlib import Path
from eyas.doctor.case import Case
case, value = Case(Path(sys.argv[1])), {"name": "x" * 200_000, "claim": "c", "verdict": "ruled out", "evidence": "e", "seconds": 0.1}
while True:
    print(case.add("test", value).number, flush=True)
"""


def test_a_killed_run_leaves_the_case_whole(tmp_path):
    """Three times a writer is killed in the middle; each next one goes on with the next number."""
    folder = tmp_path / "case"
    for killed in range(1, 4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        first = int(writer.stdout.readline())
        for _ in range(killed):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        numbers = [event.number for event in Case(folder).events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert first in numbers
        assert story(Case(folder))
