"""Keep what a replay found, as far as docs/kimi.md shows it, and write the page's tables from that.

python examples/kimi_case/page.py kimi/result.json benchmarks/results/kimi.json docs/kimi.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from eyas.engines.catalog import parse_engine
from eyas.engines.plan import plan
from eyas.engines.target_facts import TargetFacts
from eyas.errors import UserError
from eyas.files import read_json, write_json, write_text
from eyas.marks import fill
from eyas.taps import parse_taps
from eyas.wiring import Wiring

KIMI = TargetFacts("KimiK25ForConditionalGeneration", num_layers=61, hidden_size=7168, vocab_size=163840)
TRAINED = "embed,layer:2,layer:30"
WRITER = "examples/kimi_case/page.py"
VERSIONS = ("sglang==0.5.12", "sglang==0.5.13", "sglang==0.5.14", "sglang==0.5.23", "vllm==0.25.0", "vllm==0.33.0")
SUSPECTS = {
    "states-partial": "tensor format under tensor parallelism; capture point",
    "states-scattered": "what the ranks do to the embedding",
    "context-lost": "context parallelism of the prefill; sparse attention",
    "slot-order": "order of the slots",
    "pair-shift": "state and token shifted against each other",
    "norm-placement": "norms in front of the draft",
    "rope-theta": "RoPE of the draft",
    "draft-stale": "other weights of the target",
    "dump-changed": "a dump that was damaged",
}


_FIGURES = ("fed", "engine", "teacher", "teacher_agreement", "first_token_accuracy", "acceptance_length_predicted", "acceptance_length")


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """Of a replay's result what the page shows: every figure, what was found, and the evidence that acquits the suspects."""
    return {"states": result["states"], "cases": [_case(case) for case in result["cases"]]}


def _case(case: dict[str, Any]) -> dict[str, Any]:
    told = case["doctor"]
    evidence = {
        item["code"]: item["evidence"][0]["text"] for item in told["ruled_out"] if item["code"] in SUSPECTS
    }  # the last one of a code
    return {
        "name": case["name"],
        **{name: case[name] for name in _FIGURES},
        "verdict": told["verdict"],
        "findings": [{"code": item["code"], "subject": item["subject"]} for item in told["findings"]],
        "num_ruled_out": len(told["ruled_out"]),
        "acquitted": evidence,
    }


def table(result: dict[str, Any]) -> str:
    """The three cases side by side; `result` as `kept` gives it."""
    cases = result["cases"]
    rows: list[tuple[str, list[str]]] = [
        ("states fed", [f"`{case['fed']}`" for case in cases]),
        ("engine for which the ids were judged", [f"`{case['engine']}`" for case in cases]),
        ("teacher of the training", [f"`{case['teacher']}`" for case in cases]),
        ("teacher gives the target's top-1", [f"{100 * case['teacher_agreement']:.1f} %" for case in cases]),
        ("first-token accuracy", [f"{100 * case['first_token_accuracy']:.1f} %" for case in cases]),
        ("tokens per round, predicted", [f"{case['acceptance_length_predicted']:.2f}" for case in cases]),
        ("tokens per round, measured", [f"{case['acceptance_length']:.2f}" for case in cases]),
        ("the doctor finds", [_codes(case["findings"]) for case in cases]),
        ("its verdict", [case["verdict"] for case in cases]),
        ("hypotheses that it rules out", [str(case["num_ruled_out"]) for case in cases]),
    ]
    return _rows(["", *(case["name"] for case in cases)], [[name, *cells] for name, cells in rows])


def acquitted(result: dict[str, Any]) -> str:
    """The story's innocent suspects in the first case, with the numbers. Raises UserError for one that was not ruled out."""
    seen = result["cases"][0]["acquitted"]
    suspected = sorted(set(SUSPECTS) - set(seen))
    if suspected:
        raise UserError(
            "the doctor did not rule out every suspect in the first case", got=suspected, remedy="see doctor-*.json of the replay"
        )
    return _rows(["suspect", "what was seen"], [[words, seen[code].replace("|", "/")] for code, words in SUSPECTS.items()])


def translated() -> str:
    wiring = Wiring(
        taps=parse_taps(TRAINED),
        num_target_layers=KIMI.num_layers,
        target_hidden_size=KIMI.hidden_size,
        target_vocab_size=KIMI.vocab_size,
    )
    rows = []
    for version in VERSIONS:
        found = plan(wiring, parse_engine(version), KIMI)
        ids = found.config.get("eagle_aux_hidden_state_layer_ids")
        rows.append([f"`{version}`", f'`"eagle_aux_hidden_state_layer_ids": {ids}`' if found.reachable else "cannot", found.notes[0]])
    return _rows(["engine", "in the draft's config.json", "why"], rows)


def _codes(findings: list[dict[str, Any]]) -> str:
    return ", ".join(f"[{item['code']}](doctor/{item['code']}.md) ({item['subject']})" for item in findings) or "nothing"


def _rows(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def written(page: str, result: dict[str, Any]) -> str:
    """The page with all its tables."""
    for name, text in (("table", table(result)), ("acquitted", acquitted(result)), ("translated", translated())):
        page = fill(page, name, WRITER, text)
    return page


def main() -> None:
    result_path, kept_path, page_path = map(Path, sys.argv[1:])
    result = kept(read_json(result_path, "the replay's result"))
    page = written(page_path.read_text(encoding="utf-8"), result)
    write_json(kept_path, result)
    write_text(page_path, page)


if __name__ == "__main__":
    main()
