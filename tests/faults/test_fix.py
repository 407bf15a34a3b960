"""Fix mode: the mended draft is examined and found healthy; the one that came is not touched; what no file mends is said."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from eyas.doctor.exhibits import Options
from eyas.doctor.fix import DIFF, fix
from eyas.errors import UserError
from seeded import behaviour, contents, dumps
from seeded.edits import further, names_of, redraft
from seeded.equivalents import accepted
from seeded.examine import ROWS
from seeded.registry import FAULTS, REPLAY

OPTIONS = Options(depths=REPLAY, rows=ROWS)
GIVEN = ("target", "draft", "data")
MENDED = (
    ("taps-shifted", "declared one layer further"),
    ("slot-order", "columns of fc reversed"),
    ("half-order", "[hidden | embedding] where [embedding | hidden] belongs"),
    ("norm-feedback", "normed state fed back"),
    ("map-absolute", "d2t holds ids"),
    ("rope-theta", "no theta in either schema"),
    ("rope-range", "positions end at 16"),
    ("embedding-foreign", "embedding at random"),
    ("norm-convention", "all norm weights less 1"),
)


def contents_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("code", "name"), MENDED, ids=str)
def test_what_a_file_can_mend_is_mended(code: str, name: str, set_of):
    [fault] = [item for item in FAULTS if (item.code, item.name) == (code, name)][:1]
    s = fault.plant(set_of("llama")).but(given=GIVEN)
    before = contents_of(s.draft)
    report = fix(s.exhibits(), OPTIONS, s.work / "mended")
    assert accepted(code) & set(report.mended), (report.mended, report.left, report.before.summary)
    assert report.left == ()
    assert report.after is not None
    assert report.after.verdict == "healthy", report.after.summary
    step = "accuracy_step_1" if code == "norm-feedback" else "accuracy"  # what is fed back is first read by the second step
    assert report.after.measured[step] > report.before.measured[f"{step}_as_given"] or code == "rope-range"
    assert report.diff == (s.work / "mended" / DIFF).read_text() != ""
    assert contents_of(s.draft) == before, "never in place"


def test_two_faults_are_mended_together(set_of):
    s = set_of("llama")
    s = redraft(redraft(s, wiring={"taps": names_of(s, further)}), contents.first_ids).but(given=GIVEN)
    report = fix(s.exhibits(), OPTIONS, s.work / "mended")
    assert report.left == ()
    assert len(report.mended) == 2


def test_a_healthy_draft_is_left_alone(set_of):
    s = set_of("llama").but(given=GIVEN)
    report = fix(s.exhibits(), OPTIONS, s.work / "mended")
    assert report.out is None
    assert not (s.work / "mended").exists()


def test_what_only_a_training_mends_is_refused(set_of):
    s = dumps.trained_on_shifted(set_of("llama"))
    with pytest.raises(UserError, match="trained on tokens and states"):
        fix(s.exhibits(), OPTIONS, s.work / "mended")
    assert not (s.work / "mended").exists()


def test_no_folder_in_use_is_written_to(set_of):
    s = behaviour.declared(further)(set_of("llama"))
    for out in (s.draft, s.draft / "inside", s.target):
        with pytest.raises(UserError, match=r"the draft itself|not empty"):
            fix(s.exhibits(), OPTIONS, out)
