"""The doctor asks real servers over HTTP: a healthy one gives no finding, a broken one gives the cause."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broken_engine
import serving
from eyas.cli.main import main
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis
from eyas.doctor.runner import examine
from eyas.doctor.server import client, protocol
from eyas.errors import UserError
from eyas.taps import parse_taps
from serving import Serving, Wrong

pytestmark = pytest.mark.timeout(300)

CODES = (
    "lossy",
    "lossy-sampling",
    "target-changed",
    "cache-variant",
    "batch-variant",
    "served-below",
    "template-differs",
    "metric-impossible",
)
LIVE = Options(depths=("live",), only=CODES, rows=400)
BELOW = "the server accepts less than this draft gives on its answers"
Serve = Callable[..., Serving]


def asked(folder: Path, server: Serving, **more: Any) -> Diagnosis:
    given: dict[str, Any] = {"target": str(folder / "target"), "draft": folder / "draft", "data": folder / "chats.jsonl"}
    return examine(Exhibits(server=server.address, **{**given, **more}), LIVE)[0]


def codes(found: Diagnosis) -> list[tuple[str, str]]:
    return [(finding.code, finding.subject) for finding in found.findings]


def judgements(found: Diagnosis) -> dict[str, str]:
    return {item.hypothesis.claim: item.outcome.judgement for item in found.tested if "server" in item.hypothesis.needs}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_healthy_server_is_healthy(serve: Serve, served_set: Path, engine: str):
    found = asked(served_set, serve(engine=engine))
    assert codes(found) == []
    assert set(judgements(found).values()) == {"ruled out"}, found.tested
    assert found.verdict == "healthy"
    for row in found.measured["served"]:  # both decode in fp32: what is left is the last round of each answer
        wanted, seen = row["expected"]["conditional"], [item["value"] for item in row["reported"]["conditional"]]
        assert seen == pytest.approx(wanted, abs=0.04)
    assert found.measured["reported"][0]["rounds"] > 150
    assert "api_key" not in json.dumps(found.to_json())


FAULTS: dict[str, tuple[Wrong, str, str]] = {
    "states of the next layers": (Wrong(taps=parse_taps("layer:1,layer:2,layer:3")), "taps-engine", "layer:1,layer:2,layer:3"),
    "slots in another order": (Wrong(taps=parse_taps("layer:2,layer:0,layer:1")), "slot-order", "layer:2,layer:0,layer:1"),
    "nothing accepted": (Wrong(engine=broken_engine.proposes_nonsense), "served-below", "1.00 tokens a round"),
    "every proposal accepted": (Wrong(engine=broken_engine.accepts_everything), "lossy", "not the target's own"),
    "sampling from another distribution": (Wrong(engine=broken_engine.samples_too_hot), "lossy-sampling", "less likely than what it would"),
    "refused proposals kept": (Wrong(engine=broken_engine.forgets_nothing), "cache-variant", "after some rounds"),
    "rows of a batch mixed up": (Wrong(engine=broken_engine.mixes_rows), "batch-variant", "otherwise"),
    "states of a batch mixed up": (Wrong(engine=broken_engine.mixes_states), "batch-variant", "tokens a round"),
    "a cached prompt that lost a token": (Wrong(cached_prompt=True), "cache-variant", "otherwise"),
    "cached states of the draft lost": (Wrong(cached_states=True), "cache-variant", "tokens a round instead of"),
    "the first chunk of a long prompt lost": (Wrong(chunk=512), "cache-variant", "prompts of"),
    "another template": (Wrong(render=lambda text: text.replace("user", "human")), "template-differs", "rendered otherwise"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_server_is_named(serve: Serve, served_set: Path, name: str):
    wrong, code, words = FAULTS[name]
    found = asked(served_set, serve(wrong))
    assert codes(found) == [(code, "server")]
    assert any(words in item.text for item in found.findings[0].evidence), found.findings
    assert found.exit_status == 1


def test_another_target_is_told_from_lossy_decoding(serve: Serve, served_set: Path, tiny_targets: Callable[..., Path]):
    """The server is right in itself; it serves another model than --target."""
    found = asked(served_set, serve(), target=str(tiny_targets("llama", trained=True, seed=1)), draft=None)
    assert codes(found) == [("target-changed", "server")]


def test_a_server_alone_is_asked_what_it_can_be(serve: Serve, served_set: Path):
    """Without target and draft: against itself, and what its figures look like."""
    data = served_set / "chats.jsonl"
    found = examine(Exhibits(server=serve(Wrong(engine=broken_engine.proposes_nonsense)).address, data=data), LIVE)[0]
    assert found.verdict == "inconclusive"
    assert judgements(found)["the server's greedy text is not the target's own"] == "ruled out"
    assert judgements(found)["what else is in the server's batch changes a request"] == "ruled out"
    assert found.signature
    assert any("--target" in line for line in found.next_steps)
    found = examine(Exhibits(server=serve(Wrong(engine=broken_engine.accepts_everything)).address, data=data), LIVE)[0]
    assert ("lossy", "server") in codes(found)


def test_a_server_of_few_words_is_compared_by_text(serve: Serve, served_set: Path):
    found = asked(served_set, serve(Wrong(strict=True)))
    assert codes(found) == []
    assert judgements(found)["the server's greedy text is not the target's own"] == "ruled out"
    assert any("compared by text" in note for note in found.notes)
    found = asked(served_set, serve(Wrong(strict=True, engine=broken_engine.accepts_everything)))
    assert ("lossy", "server") in codes(found)


@pytest.mark.parametrize(
    ("wrong", "words"), [(Wrong(others=40), "what others asked"), (Wrong(counters=False), "no counters of speculative decoding")]
)
def test_counters_that_cannot_be_used_are_not_used(serve: Serve, served_set: Path, wrong: Wrong, words: str):
    found = asked(served_set, serve(wrong))
    [served] = [item for item in found.tested if item.hypothesis.claim == BELOW]
    assert served.outcome.judgement == "cannot be tested"
    assert words in served.outcome.reason
    assert codes(found) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_without_its_draft_is_a_fault_only_if_one_is_given(serve: Serve, served_set: Path, engine: str):
    found = asked(served_set, serve(Wrong(plain=True), engine=engine))
    assert codes(found) == [("served-below", "server")]
    assert "no round of speculation" in found.findings[0].evidence[0].text
    found = asked(served_set, serve(Wrong(plain=True), engine=engine), draft=None)
    assert codes(found) == []
    assert judgements(found)["the server does not speculate at all"] == "suspected"


def test_a_server_that_answers_no_prompt_is_left_before_anything_is_computed(serve: Serve, served_set: Path, monkeypatch):
    monkeypatch.setattr(protocol, "_GREETING_SECONDS", 0.5)
    begun = time.monotonic()
    with pytest.raises(UserError, match="did not finish its answer"):
        asked(served_set, serve(Wrong(stuck=True)))
    assert time.monotonic() - begun < 30


def test_requests_that_are_counted_by_themselves_can_have_company(serve: Serve, served_set: Path):
    found = asked(served_set, serve(Wrong(others=40, by_request=True)))
    assert codes(found) == []
    assert found.verdict == "healthy"
    assert set(judgements(found).values()) == {"ruled out"}


def test_what_could_not_be_tested_of_a_server_is_not_called_healthy(serve: Serve, served_set: Path):
    found = asked(served_set, serve(Wrong(others=40)))
    assert found.verdict == "inconclusive"
    assert "what others asked" in found.summary


def test_a_server_that_proposes_more_than_the_draft_was_trained_for(serve: Serve, served_set: Path, tmp_path: Path):
    draft = tmp_path / "draft"
    shutil.copytree(served_set / "draft", draft)
    wiring = json.loads((draft / "wiring.json").read_text())
    (draft / "wiring.json").write_text(json.dumps(wiring | {"ttt_steps": serving.K - 1}))
    exhibits = Exhibits(server=serve().address, target=str(served_set / "target"), draft=draft)
    found = examine(exhibits, Options(depths=("static",), only=("train-steps",), num_draft_tokens=7))[0]
    assert [finding.code for finding in found.findings] == ["train-steps"]
    assert any("--num-draft-tokens is 7, and the server proposes 3" in note for note in found.notes)


def test_a_server_that_dies_in_the_middle_is_no_traceback(serve: Serve, served_set: Path):
    server = serve()

    def fail(engine: Any) -> None:
        raise ValueError("a request too many")

    count = [0]
    answer = server.answer

    def dying(*given: Any) -> Any:
        count[0] += 1
        return answer(*given) if count[0] < 12 else fail(None)

    server.answer = dying  # type: ignore[method-assign]
    found = asked(served_set, server)
    assert codes(found) == []
    assert "cannot be tested" in judgements(found).values()
    assert not any("bug in Eyas" in note for note in found.notes)


def test_a_server_that_was_restarted_is_not_at_fault(serve: Serve, served_set: Path):
    """It comes back with a worse draft: what it accepts then is no matter of its caches or batches."""
    found = asked(served_set, serve(Wrong(restart=20)))
    assert codes(found) == []
    [reason] = {item.outcome.reason for item in found.tested if item.hypothesis.claim.startswith("what else is in the server's batch")}
    assert "it was restarted" in reason


def test_a_server_that_turns_some_away_is_asked_again(serve: Serve, served_set: Path, monkeypatch):
    monkeypatch.setattr(client, "_PAUSES", (0.3, 1.0, 4.0))
    found = asked(served_set, serve(Wrong(most_at_once=16)))
    assert codes(found) == []
    assert set(judgements(found).values()) == {"ruled out"}, found.tested


def test_positions_beyond_the_training_are_judged_by_what_they_do(serve: Serve, served_set: Path, tmp_path: Path):
    draft = tmp_path / "draft"
    shutil.copytree(served_set / "draft", draft)
    wiring = json.loads((draft / "wiring.json").read_text())
    (draft / "wiring.json").write_text(json.dumps(wiring | {"ttt_steps": serving.K - 1}))
    exhibits = Exhibits(server=serve().address, target=str(served_set / "target"), draft=draft, data=served_set / "chats.jsonl")
    found = examine(exhibits, Options(only=("train-steps",), rows=400))[0]
    assert codes(found) == []
    assert "no guesses all the same" in found.tested[-1].outcome.evidence[0].text


def test_the_key_of_a_server(serve: Serve, monkeypatch, capsys):
    server = serve(Wrong(key="sk-secret"))
    monkeypatch.delenv("EYAS_API_KEY", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--server", server.address])
    assert stopped.value.code == 2
    assert "EYAS_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("EYAS_API_KEY", "sk-secret")
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--metrics", f"{server.address}/metrics", "--json"])
    assert stopped.value.code == 0
    output = capsys.readouterr()
    assert "sk-secret" not in output.out + output.err


def test_the_command_line_as_a_user_types_it(serve: Serve, served_set: Path, tmp_path: Path, capsys):
    server = serve(Wrong(taps=parse_taps("layer:1,layer:2,layer:3")))
    given = ["--target", served_set / "target", "--draft", served_set / "draft", "--data", served_set / "chats.jsonl"]
    given += ["--only", "served-below"]
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--server", server.address, *map(str, given), "--html", str(tmp_path / "page.html"), "--json"])
    assert stopped.value.code == 1
    value = json.loads(capsys.readouterr().out)
    assert value["findings"][0]["code"] == "taps-engine"
    assert value["exhibits"]["server"] == server.address.removeprefix("http://")
    assert "Acceptance by position" in (tmp_path / "page.html").read_text()
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--server", "http://nobody.invalid:1", *map(str, given), "--plan", "--json"])
    assert stopped.value.code == 0
    planned = json.loads(capsys.readouterr().out)["plan"]
    ready = [item["claim"] for item in planned if item["missing"] is None]
    assert ready == ["the server does not speculate at all", BELOW]


def test_a_plan_asks_nobody():
    from eyas.doctor.planning import plan

    rows = plan(Exhibits(server="http://nobody.invalid:1"), LIVE)
    missing = {item.claim: lacks for item, lacks in rows if "server" in item.needs}
    assert missing["the server's greedy text is not the target's own"] is None
    assert missing["the server serves another target"] == "layers"
    assert dataclasses.is_dataclass(rows[0][0])
