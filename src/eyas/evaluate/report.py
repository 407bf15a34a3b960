"""An evaluation for machines (a JSON object) and for people (a table; the plot is in `plot`)."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from eyas.evaluate.acceptance import Acceptance, sglang_num_draft_tokens
from eyas.evaluate.agreement import MIN_ROUNDS, Agreement, Tie
from eyas.evaluate.evaluate import Evaluation, Figures
from eyas.evaluate.measure import Lossless
from eyas.taps import format_taps


def to_json(evaluation: Evaluation, lossless: Lossless | None) -> dict[str, Any]:
    """The figures of all answers at the top, then those without loops, by domain, and what they rest on.

    `conditional` and `unconditional` are the measured rates if decoding was measured, else the predicted ones; both
    are given in full under `predicted` and `measured`.
    """
    settings, speed = evaluation.settings, evaluation.speed
    return {
        **_figures(evaluation.all),
        "tokens_per_second_plain": speed.plain if speed else None,
        "tokens_per_second_speculative": speed.speculative if speed else None,
        "lossless": lossless.holds if lossless else None,
        "lossless_check": lossless.to_json() if lossless else None,
        "dtype": evaluation.dtype,
        "num_draft_tokens": settings.num_draft_tokens,
        "num_draft_tokens_sglang": sglang_num_draft_tokens(settings.num_draft_tokens),
        "max_new_tokens": settings.max_new_tokens,
        "taps": format_taps(evaluation.trained_on),
        "as_if": format_taps(evaluation.fed) if evaluation.fed != evaluation.trained_on else None,
        "agreement": _agreement(evaluation.agreement),
        "loops": {"share": evaluation.loop_share, "without_loops": _figures(evaluation.without_loops)},
        "domains": {name: _figures(figures) for name, figures in evaluation.domains.items()},
    }


def peak_rss_gib() -> float:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def table(evaluation: Evaluation, title: str) -> Table:
    """Predicted and measured side by side, position by position, with and without loops."""
    result = Table(title=title, title_justify="left", header_style="bold")
    result.add_column("")
    groups = [("all answers", evaluation.all), ("without loops", evaluation.without_loops)]
    for name, _ in groups:
        for kind in ("predicted", "measured") if evaluation.settings.measure else ("predicted",):
            result.add_column(f"{name}\n{kind}", justify="right")
    for label, read in _rows(evaluation.settings.num_draft_tokens):
        cells = []
        for _, figures in groups:
            cells.append(read(figures.predicted))
            if evaluation.settings.measure:
                cells.append(read(figures.measured))
        result.add_row(label, *cells)
    return result


def summary_lines(evaluation: Evaluation, lossless: Lossless | None) -> list[str]:
    """What the table does not hold, a sentence each."""
    lines = [f"{step_name(step)}: {_both(evaluation, step)}" for step in range(evaluation.settings.num_draft_tokens)]
    limit = evaluation.settings.max_new_tokens
    lines.append(f"answers that end in a loop: {evaluation.loop_share:.0%} of {evaluation.all.chats} (at most {limit} tokens each)")
    for name, figures in evaluation.domains.items():
        best = figures.measured or figures.predicted
        length = f"{best.acceptance_length:.2f}" if best else "-"
        lines.append(f"  {name}: first token {percent(figures.first_token_accuracy)}, acceptance length {length}")
    if evaluation.agreement is not None:
        lines += _agreement_lines(evaluation.agreement)
    if evaluation.speed is not None and evaluation.speed.plain and evaluation.speed.speculative:
        plain, speculative = evaluation.speed.plain, evaluation.speed.speculative
        lines.append(f"decoding one request: {plain:.1f} tokens/s plain, {speculative:.1f} speculative ({speculative / plain:.2f} x)")
    if lossless is not None:
        outcome = "equals" if lossless.holds else "DIFFERS from"
        lines.append(
            f"lossless in {lossless.dtype}: the output {outcome} transformers' on {lossless.prompts} prompts, {lossless.tokens} tokens"
        )
        lines += [f"  {difference}" for difference in lossless.differences]
    return lines


def show(console: Console, evaluation: Evaluation, lossless: Lossless | None, title: str) -> None:
    console.print(table(evaluation, title))
    for line in summary_lines(evaluation, lossless):
        console.print(line, markup=False, highlight=False)


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"


def step_name(step: int) -> str:
    return "first-token accuracy (uniform)" if step == 0 else f"accuracy at step {step + 1} (uniform)"


def _rows(num_draft_tokens: int) -> list[tuple[str, Callable[[Acceptance | None], str]]]:
    """The table's rows: a label, and what to show of either account."""

    def shown(read: Callable[[Acceptance], str]) -> Callable[[Acceptance | None], str]:
        return lambda figures: "-" if figures is None else read(figures)

    def rate(name: str, position: int) -> Callable[[Acceptance | None], str]:
        return shown(lambda figures: percent(getattr(figures, name)[position]))

    rates = [(f"{name} rate at {i + 1}", rate(name, i)) for name in ("conditional", "unconditional") for i in range(num_draft_tokens)]
    return [
        ("acceptance length", shown(lambda figures: f"{figures.acceptance_length:.3f}")),
        ("  95 % interval", shown(lambda figures: f"{figures.confidence_interval[0]:.2f} - {figures.confidence_interval[1]:.2f}")),
        ("as vLLM counts it", shown(lambda figures: f"{figures.vllm_acceptance_length:.3f}")),
        *rates,
        ("rounds", shown(lambda figures: str(figures.rounds))),
    ]


def _both(evaluation: Evaluation, step: int) -> str:
    return f"{percent(evaluation.all.uniform_accuracy[step])}, without loops {percent(evaluation.without_loops.uniform_accuracy[step])}"


def _agreement_lines(agreement: Agreement) -> list[str]:
    outcome = {True: "holds", False: "DOES NOT HOLD", None: f"not judged: {MIN_ROUNDS} rounds are needed"}[agreement.holds]
    lines = [
        f"predicted against measured ({agreement.rule}): {outcome}",
        f"  {agreement.rounds_compared} rounds, acceptance lengths differ by {agreement.relative_difference:.2%}",
    ]
    lines += [f"  tie, proven: {_tie_text(tie)}" for tie in agreement.ties]
    lines += [f"  UNEXPLAINED: {_tie_text(tie)}" for tie in agreement.unexplained]
    return lines


def _tie_text(tie: Tie) -> str:
    gap = "" if tie.gap is None else f" (logits {tie.gap:.2g} apart, a tie up to {tie.allowed:.2g})"
    return f"chat {tie.chat}, {tie.what}{gap}"


def _figures(figures: Figures) -> dict[str, Any]:
    predicted, measured = figures.predicted, figures.measured
    best = measured or predicted
    return {
        "chats": figures.chats,
        "first_token_accuracy": figures.first_token_accuracy,
        "uniform_accuracy": list(figures.uniform_accuracy),
        "acceptance_length_predicted": _value(predicted, "acceptance_length"),
        "acceptance_length_measured": _value(measured, "acceptance_length"),
        "vllm_acceptance_length_predicted": _value(predicted, "vllm_acceptance_length"),
        "vllm_acceptance_length_measured": _value(measured, "vllm_acceptance_length"),
        "conditional": list(best.conditional) if best else [],
        "unconditional": list(best.unconditional) if best else [],
        "confidence_interval": list(best.confidence_interval) if best else None,
        "rounds": best.rounds if best else 0,
        "predicted": predicted.to_json() if predicted else None,
        "measured": measured.to_json() if measured else None,
    }


def _value(acceptance: Acceptance | None, name: str) -> float | None:
    return None if acceptance is None else float(getattr(acceptance, name))


def _agreement(agreement: Agreement | None) -> dict[str, Any] | None:
    if agreement is None:
        return None
    return {
        "rule": agreement.rule,
        "holds": agreement.holds,
        "rounds_compared": agreement.rounds_compared,
        "relative_difference": agreement.relative_difference,
        "ties": [_tie_text(tie) for tie in agreement.ties],
        "unexplained": [_tie_text(tie) for tie in agreement.unexplained],
    }
