"""The picture of an evaluation: acceptance by position, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import UserError
from eyas.evaluate.acceptance import Acceptance
from eyas.evaluate.evaluate import Evaluation
from eyas.files import atomic_path, write_json

_COLOURS = ("#1f6f8b", "#c8553d")
_INK, _FAINT = "#22303c", "#d9dee3"


@dataclass(frozen=True)
class Series:
    """One draft's figures under a name; `measured` is None if it was only predicted."""

    name: str
    predicted: Acceptance
    measured: Acceptance | None


def check_can_plot() -> None:
    """Raises UserError, before any work is done, if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("plots need matplotlib", got="not installed", remedy="pip install 'eyas[plots]'") from error


def write_plot(path: Path, series: Sequence[Series], title: str, subtitle: str) -> None:
    """A PNG with one colour a series: bars are measured rates, diamonds predicted ones."""
    check_can_plot()
    import matplotlib.figure  # the figure alone: pyplot would pick a window system

    figure = matplotlib.figure.Figure(figsize=(9.6, 4.6), dpi=160, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, series, "conditional", "accepted, given that all before it were")
    _panel(right, series, "unconditional", "accepted, of all rounds that proposed it")
    left.set_ylabel("acceptance rate", color=_INK)
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    figure.text(0.01, 0.915, subtitle, fontsize=9, color="#5b6872")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, frameon=False, fontsize=9, labelcolor=_INK)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", facecolor="white")


def write_report(folder: Path, value: Mapping[str, Any], evaluation: Evaluation, target_name: str) -> None:
    """report.json with `value`, and report.png: all answers, and those that do not end in a loop."""
    write_json(folder / "report.json", value)
    groups = [("all answers", evaluation.all), ("without loops", evaluation.without_loops)]
    series = [Series(name, figures.predicted, figures.measured) for name, figures in groups if figures.predicted is not None]
    write_plot(folder / "report.png", series, f"Acceptance by position on {target_name}", conditions(evaluation))


def conditions(evaluation: Evaluation) -> str:
    """What an evaluation's figures hold for, in a line."""
    settings = evaluation.settings
    limit = f"at most {settings.max_new_tokens} tokens an answer"
    return f"K = {settings.num_draft_tokens}, greedy, {limit}, {evaluation.all.chats} prompts, {evaluation.dtype}"


def _panel(axes: Any, series: Sequence[Series], rate: str, title: str) -> None:
    width = 0.72 / len(series)
    positions = series[0].predicted.num_draft_tokens
    for number, (item, colour) in enumerate(zip(series, _COLOURS, strict=False)):
        shift = (number - (len(series) - 1) / 2) * width
        predicted = _percent(getattr(item.predicted, rate))
        places = [position + 1 + shift for position in range(positions)]
        measured = _percent(getattr(item.measured, rate)) if item.measured is not None else None
        if item.measured is not None:
            axes.bar(places, measured, width * 0.9, color=colour, label=_label(item, "measured", item.measured), zorder=2)
        for place, *heights in zip(places, predicted, measured or predicted, strict=True):
            if heights[1] == heights[1]:  # a position that no round reached has no rate
                axes.text(place, max(heights) + 3, f"{heights[1]:.0f}", ha="center", color=colour, fontsize=9, fontweight="bold")
        axes.plot(
            places, predicted, "D", ms=6.5, mfc="white", mec=colour, mew=1.8, label=_label(item, "predicted", item.predicted), zorder=5
        )
    axes.set_title(title, fontsize=10, color=_INK, loc="left", pad=10)
    axes.set_xlabel("position in the draft", color=_INK)
    axes.set_xticks(range(1, positions + 1))
    axes.set_ylim(0, 100)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.tick_params(colors=_INK, length=0)
    axes.grid(axis="y", color=_FAINT, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)


def _label(item: Series, kind: str, figures: Acceptance) -> str:
    low, high = figures.confidence_interval
    return f"{item.name} {kind}: acceptance length {figures.acceptance_length:.2f} ({low:.2f} to {high:.2f})"


def _percent(rates: Sequence[float | None]) -> list[float]:
    return [float("nan") if rate is None else 100 * rate for rate in rates]
