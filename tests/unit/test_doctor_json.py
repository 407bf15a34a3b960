"""The JSON that the doctor prints is what its page says, key by key; and the exit statuses, too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.main import main
from eyas.doctor.catalog import CATALOG
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis, Evidence, Fault, Finding, Outcome, Slot, Tested
from eyas.doctor.runner import run

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## JSON")[1].split("\n## ")[0]
ROWS = {key: row for row in re.findall(r"^\| (`.*)\|$", SECTION, flags=re.MULTILINE) for key in re.findall(r"`(\w+)`", row.split("|")[0])}


def whole() -> dict[str, Any]:
    from eyas.doctor.checks import all_hypotheses

    evidence = (Evidence("seen", {"share": 0.5, "none": float("nan"), "pair": (1, 2)}),)
    fault = Fault("taps-other", "draft", evidence, "mend it")
    finding = Finding("taps-other", "A", "title", "draft", evidence, "mend it", False, 0.5)
    tested = Tested(all_hypotheses()[0], Outcome("confirmed", evidence, (fault,)), 0.1)
    return Diagnosis("fault", "words", (finding,), (tested,), slots=(Slot(0, "embed", None),)).to_json()


def test_every_key_stands_on_the_page_and_no_other():
    assert set(whole()) == set(ROWS)


@pytest.mark.parametrize("name", ["findings", "hypotheses", "slots"])
def test_the_keys_of_its_parts_stand_there_too(name):
    keys = set(re.findall(r"`(\w+)`", ROWS[name].split("|", 1)[1]))
    assert set(whole()[name][0]) == keys - {"text", "numbers"}


def test_values_are_plain_json():
    value = json.loads(json.dumps(whole(), allow_nan=False))
    assert value["findings"][0]["evidence"] == [{"text": "seen", "numbers": {"share": 0.5, "none": None, "pair": [1, 2]}}]
    assert value["slots"] == [{"slot": 0, "expected": "embed", "found": None, "ok": True}]
    assert value["findings"][0]["page"] == "docs/doctor/taps-other.md"


def test_kinds_and_verdicts_are_those_of_the_page(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = run(Exhibits(draft=tmp_path), Options(depths=("static",))).to_json()
    assert found["verdict"] in re.findall(r"^\| `([\w-]+)` \|", PAGE.split("| verdict |")[1], flags=re.MULTILINE)
    assert found["findings"], "a folder without weights is no draft"
    for item in found["findings"]:
        assert item["kind"] == CATALOG[item["code"]].kind
    assert {item["verdict"] for item in found["hypotheses"]} <= {"confirmed", "ruled out", "suspected", "cannot be tested"}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--metrics", "METRICS"], 0),
        (["--metrics", "IMPOSSIBLE"], 1),
        (["--metrics", "NONE"], 2),
        (["--server", "ftp://x"], 2),
        (["--draft", "NONE"], 2),
        ([], 2),
        (["--metrics", "METRICS", "--temperature", "-1"], 2),
        (["--metrics", "METRICS", "--num-draft-tokens", "0"], 2),
        (["--metrics", "METRICS", "--only", "nonsense"], 2),
    ],
)
def test_exit_statuses(arguments, status, tmp_path, capsys):
    good = "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_draft_tokens_total 300\n"
    good += "vllm:spec_decode_num_accepted_tokens_total {}\n"
    for name, accepted in (("METRICS", 140), ("IMPOSSIBLE", 400)):
        (tmp_path / name).write_text(good.format(accepted))
    words = [str(tmp_path / word) if word.isupper() else word for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", *words, "--json"])
    assert stopped.value.code == status
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    if status < 2:
        assert json.loads(output.out)["doctor_format"] == 1
