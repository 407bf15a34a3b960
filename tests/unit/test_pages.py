"""Pages with parts that a program writes: the parts are what the kept results give, and the README quotes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from eyas.errors import UserError
from eyas.files import read_json
from eyas.marks import fill

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PART = "before <!-- table: me.py --> old <!-- end of table --> behind"


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kimi() -> ModuleType:
    return script("examples/kimi_case/page.py")


def test_only_what_stands_between_the_marks_is_replaced():
    filled = fill(PART, "table", "me.py", r"| \1 new |")
    assert filled.startswith("before ")
    assert filled.endswith(" behind")
    assert r"| \1 new |" in filled
    assert "old" not in filled
    assert fill(filled, "table", "me.py", "newer") == fill(PART, "table", "me.py", "newer")


@pytest.mark.parametrize("page", ["no marks", PART + PART, PART.replace("me.py", "you.py")])
def test_a_page_without_its_marks_is_refused(page):
    with pytest.raises(UserError, match="once"):
        fill(page, "table", "me.py", "new")


def test_the_kimi_page_is_made_of_the_kept_result(kimi):
    page = (ROOT / "docs" / "kimi.md").read_text(encoding="utf-8")
    assert kimi.written(page, read_json(RESULTS / "kimi.json", "the replay's result")) == page


def test_the_story_is_made_of_the_kept_evaluations():
    story, page = script("examples/story/table.py"), (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
    kept = read_json(RESULTS / "story.json", "the two evaluations")
    assert fill(page, "table", story.WRITER, story.table(kept["right"], kept["wrong"])) == page


def replayed(*ruled_out: str) -> dict:
    evidence = [{"code": code, "evidence": [{"text": f"{code} is as it should be"}], "claim": "not kept"} for code in ruled_out]
    finding = {"code": "taps-other", "subject": "draft", "evidence": "not kept"}
    case = {
        "name": "served",
        "fed": "layer:1",
        "engine": "sglang==0.5.12",
        "teacher": "final",
        "teacher_agreement": 1.0,
        "first_token_accuracy": 0.25,
        "acceptance_length": 1.5,
        "acceptance_length_predicted": 1.25,
        "doctor": {"verdict": "fault", "findings": [finding], "ruled_out": evidence},
    }
    return {"target": "/somewhere/target", "states": {"trained": "embed", "shifted": "layer:1"}, "cases": [case]}


def test_what_is_kept_is_what_the_page_shows(kimi):
    kept = kimi.kept(replayed(*kimi.SUSPECTS, "other"))
    assert "/somewhere" not in str(kept)
    assert "not kept" not in str(kept)
    assert kept["cases"][0]["num_ruled_out"] == len(kimi.SUSPECTS) + 1
    assert "| first-token accuracy | 25.0 % |" in kimi.table(kept)
    assert "slot-order is as it should be" in kimi.acquitted(kept)


def test_a_suspect_that_was_not_ruled_out_is_an_error(kimi):
    with pytest.raises(UserError, match="did not rule out") as error:
        kimi.acquitted(kimi.kept(replayed(*(code for code in kimi.SUSPECTS if code != "rope-theta"))))
    assert "rope-theta" in str(error.value)


def test_the_readme_quotes_the_kimi_case():
    cases = read_json(RESULTS / "kimi.json", "the replay's result")["cases"]
    wrong_states, wrong_teacher, right = (f"{100 * case['first_token_accuracy']:.1f} %" for case in cases)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{wrong_states} with the wrong states, {wrong_teacher} with" in readme
    assert f"{right} as it should" in readme
