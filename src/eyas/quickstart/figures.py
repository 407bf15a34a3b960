"""The quickstart's figures: what a draft gives, with the right and with the wrong states, and how it is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from eyas.engine.pair import load_pair
from eyas.evaluate.acceptance import Acceptance
from eyas.evaluate.answers import Answer, Prompt
from eyas.evaluate.evaluate import Evaluation, evaluate_answers
from eyas.evaluate.measure import Lossless, check_lossless
from eyas.evaluate.plot import Series, write_plot
from eyas.evaluate.report import percent, to_json
from eyas.evaluate.settings import EvaluateSettings, Pair
from eyas.quickstart.recipe import wrong_taps
from eyas.taps import format_taps

_LOSSLESS_TOKENS = 48


def draft_figures(pair: Pair, answers: Sequence[Answer], settings: EvaluateSettings) -> dict[str, Any]:
    """An evaluation of the draft, and its accuracy if it were fed the wrong states; `lossless` is still open."""
    evaluation = evaluate_answers(pair, answers, settings, pair.taps)
    wrong = wrong_taps(pair.taps, pair.target.num_layers)
    only_predicted = dataclasses.replace(settings, measure=False)
    fed_wrong = evaluate_answers(dataclasses.replace(pair, taps=wrong), answers, only_predicted, pair.taps)
    return {
        **to_json(evaluation, None),
        "accuracy_as_if_wrong_taps": fed_wrong.all.first_token_accuracy,
        "as_if_wrong_taps": _as_if(fed_wrong),
    }


def lossless_in_fp32(target: str, draft: Path, device: torch.device, prompts: Sequence[Prompt], num_draft_tokens: int) -> Lossless:
    """Greedy speculative output against transformers' `generate`, both in fp32."""
    pair = load_pair(target, draft, device, torch.float32)
    assert pair.draft is not None
    settings = EvaluateSettings(num_draft_tokens, _LOSSLESS_TOKENS, batch=len(prompts))
    return check_lossless(Pair(pair.target, pair.draft, pair.taps), prompts, settings)


def plot(path: Path, drafts: dict[str, dict[str, Any]], target: str, evaluated_tokens: int) -> None:
    """Acceptance by position of every draft, answers that loop left out."""
    series = []
    for name, figures in drafts.items():
        kept = figures["loops"]["without_loops"]
        if kept["predicted"] is not None:
            measured = None if kept["measured"] is None else Acceptance.from_json(kept["measured"])
            series.append(Series(name, Acceptance.from_json(kept["predicted"]), measured))
    first = next(iter(drafts.values()))
    limit = f"at most {evaluated_tokens} tokens an answer"
    conditions = f"K = {first['num_draft_tokens']}, greedy, {limit}, {first['dtype']}; answers that loop left out"
    write_plot(path, series, f"Acceptance by position on {target}", conditions)


def table(drafts: dict[str, dict[str, Any]]) -> Table:
    """The drafts side by side."""
    result = Table(header_style="bold")
    result.add_column("")
    for name in drafts:
        result.add_column(name, justify="right")
    for label, read in _ROWS:
        result.add_row(label, *(read(figures) for figures in drafts.values()))
    return result


def _as_if(evaluation: Evaluation) -> dict[str, Any]:
    figures = evaluation.all
    length = figures.predicted.acceptance_length if figures.predicted else None
    return {"taps": format_taps(evaluation.fed), "uniform_accuracy": list(figures.uniform_accuracy), "acceptance_length_predicted": length}


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _speedup(figures: dict[str, Any]) -> str:
    plain, speculative = figures["tokens_per_second_plain"], figures["tokens_per_second_speculative"]
    return f"{speculative / plain:.2f} x" if plain and speculative else "-"


_ROWS = (
    ("first-token accuracy", lambda f: percent(f["first_token_accuracy"])),
    ("  without answers that loop", lambda f: percent(f["loops"]["without_loops"]["first_token_accuracy"])),
    ("  if it were fed the wrong states", lambda f: percent(f["accuracy_as_if_wrong_taps"])),
    ("tokens a round, predicted", lambda f: _number(f["acceptance_length_predicted"])),
    ("tokens a round, measured", lambda f: _number(f["acceptance_length_measured"])),
    ("  without answers that loop", lambda f: _number(f["loops"]["without_loops"]["acceptance_length_measured"])),
    ("rounds measured", lambda f: str(f["rounds"])),
    ("tokens/s, the target alone", lambda f: _number(f["tokens_per_second_plain"], 1)),
    ("tokens/s, speculative", lambda f: _number(f["tokens_per_second_speculative"], 1)),
    ("  gain", _speedup),
    ("lossless (fp32)", lambda f: {True: "yes", False: "NO", None: "-"}[f["lossless"]]),
)
