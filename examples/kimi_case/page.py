"""Write what a replay found into docs/kimi.md: python examples/kimi_case/page.py kimi/result.json docs/kimi.md"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from eyas.engines.catalog import parse_engine
from eyas.engines.plan import plan
from eyas.engines.target_facts import TargetFacts
from eyas.files import read_json, write_text
from eyas.taps import parse_taps
from eyas.wiring import Wiring

KIMI = TargetFacts("KimiK25ForConditionalGeneration", num_layers=61, hidden_size=7168, vocab_size=163840)
TRAINED = "embed,layer:2,layer:30"
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


def table(result: dict[str, Any]) -> str:
    """The three cases side by side."""
    cases = result["cases"]
    rows: list[tuple[str, list[str]]] = [
        ("states fed", [f"`{case['fed']}`" for case in cases]),
        ("engine for which the ids were judged", [f"`{case['engine']}`" for case in cases]),
        ("teacher of the training", [f"`{case['teacher']}`" for case in cases]),
        ("teacher gives the target's top-1", [f"{100 * case['teacher_agreement']:.1f} %" for case in cases]),
        ("first-token accuracy", [f"{100 * case['first_token_accuracy']:.1f} %" for case in cases]),
        ("tokens per round, predicted", [f"{case['acceptance_length_predicted']:.2f}" for case in cases]),
        ("tokens per round, measured", [f"{case['acceptance_length']:.2f}" for case in cases]),
        ("the doctor finds", [_codes(case["doctor"]["findings"]) for case in cases]),
        ("its verdict", [case["doctor"]["verdict"] for case in cases]),
        ("hypotheses that it rules out", [str(len(case["doctor"]["ruled_out"])) for case in cases]),
    ]
    return _rows(["", *(case["name"] for case in cases)], [[name, *cells] for name, cells in rows])


def acquitted(result: dict[str, Any]) -> str:
    """The story's innocent suspects in the first case, with the numbers. A suspect that was not ruled out is an error."""
    by_code: dict[str, list[str]] = {}
    for item in result["cases"][0]["doctor"]["ruled_out"]:
        by_code.setdefault(item["code"], []).append(item["evidence"][0]["text"])
    return _rows(["suspect", "what was seen"], [[words, by_code[code][-1].replace("|", "/")] for code, words in SUSPECTS.items()])


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


def fill(page: str, name: str, text: str) -> str:
    """`page` with what stands between the two marks called `name` replaced."""
    begin, end = f"<!-- {name}: examples/kimi_case/page.py -->", f"<!-- end of {name} -->"
    filled, count = re.subn(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"the page must hold {begin!r} and {end!r} once")
    return filled


def main() -> None:
    result_path, page_path = map(Path, sys.argv[1:])
    result = read_json(result_path, "the replay's result")
    page = page_path.read_text(encoding="utf-8")
    for name, text in (("table", table(result)), ("acquitted", acquitted(result)), ("translated", translated())):
        page = fill(page, name, text)
    write_text(page_path, page)


if __name__ == "__main__":
    main()
