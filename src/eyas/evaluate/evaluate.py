"""Evaluate a draft on held-out prompts: one text, two accounts of it.

the target's own greedy answers
    -> the draft's steps at every row -> uniform accuracy; the walk -> PREDICTED rounds
    -> speculative decoding of the same prompts                     -> MEASURED rounds
and both side by side
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.draft.model import Eagle3Draft
from eyas.engine.request import Round
from eyas.errors import UserError
from eyas.evaluate.acceptance import Acceptance, acceptance
from eyas.evaluate.agreement import Agreement, agree
from eyas.evaluate.answers import Answer, Prompt, greedy_answers, spread
from eyas.evaluate.forecast import Forecast, forecast
from eyas.evaluate.measure import Speed, measure, measure_speed
from eyas.evaluate.settings import EvaluateSettings, Pair, fed_taps
from eyas.evaluate.uniform import uniform_accuracy
from eyas.evaluate.walk import walk
from eyas.progress import Progress, console
from eyas.taps import Tap
from eyas.targets.devices import dtype_name
from eyas.targets.target import Target
from eyas.wiring import Wiring


@dataclass(frozen=True)
class Figures:
    """The figures of one group of chats. `uniform_accuracy` has one entry a step; None where nothing was scored."""

    chats: int
    uniform_accuracy: tuple[float | None, ...]
    predicted: Acceptance | None
    measured: Acceptance | None

    @property
    def first_token_accuracy(self) -> float | None:
        return self.uniform_accuracy[0]


@dataclass(frozen=True)
class Evaluation:
    """`trained_on` and `fed` are the draft's taps and those it was given here; they differ only on purpose.

    `agreement` and `speed` are None if nothing was measured. `loop_share` is the share of answers that end in a loop.
    """

    settings: EvaluateSettings
    dtype: str
    trained_on: tuple[Tap, ...]
    fed: tuple[Tap, ...]
    all: Figures
    without_loops: Figures
    loop_share: float
    domains: dict[str, Figures]
    agreement: Agreement | None
    speed: Speed | None


@dataclass(frozen=True)
class _Scored:
    """One chat with both accounts of it; `measured` is None if it was only predicted."""

    answer: Answer
    forecast: Forecast
    predicted: list[Round]
    measured: tuple[Round, ...] | None


def evaluate(
    target: Target,
    draft: Eagle3Draft,
    wiring: Wiring,
    prompts: Sequence[Prompt],
    settings: EvaluateSettings,
    as_if: tuple[Tap, ...] | None = None,
) -> Evaluation:
    """All figures of a draft on `prompts`.

    The wiring must have been compared with the target's before (`eyas.engine.pair`).

    Args:
        wiring: the draft's; its taps are fed unless `as_if` names others.
        as_if: feed these states instead, on purpose, to see what that costs.

    Raises:
        UserError: no prompt, as-if taps that do not fit, or answers all so short that no round ever started.
    """
    if not prompts:
        raise UserError("there is nothing to evaluate on", got="no prompts")
    pair = Pair(target, draft, fed_taps(wiring, target.num_layers, as_if))
    console.print(f"{len(prompts)} prompts: the target's own answers, at most {settings.max_new_tokens} tokens each")
    answers = greedy_answers(target, prompts, settings.max_new_tokens, settings.batch)
    return evaluate_answers(pair, answers, settings, wiring.taps)


def evaluate_answers(pair: Pair, answers: Sequence[Answer], settings: EvaluateSettings, trained_on: tuple[Tap, ...]) -> Evaluation:
    """The same on answers already at hand: several drafts, or one draft on several states, share them."""
    if all(len(answer.tokens) < 2 for answer in answers):
        raise UserError(
            "every answer ends with its first token, so there is nothing to draft", remedy="use other chats, or check the chat template"
        )
    with Progress("scoring", len(answers), "answers") as progress:
        forecasts = forecast(pair, answers, settings.num_draft_tokens, settings.batch, progress.advance)
    predicted = [
        walk(answer.tokens, item.hits_RK.tolist(), settings.num_draft_tokens, settings.max_new_tokens)
        for answer, item in zip(answers, forecasts, strict=True)
    ]
    prompts = [answer.prompt for answer in answers]
    agreement, speed = None, None
    measured: list[tuple[Round, ...] | None] = [None] * len(answers)
    if settings.measure:
        console.print(f"decoding the same prompts with {settings.num_draft_tokens} draft tokens a round")
        outputs = measure(pair, prompts, settings)
        measured = [output.rounds for output in outputs]
        agreement = agree(pair, answers, predicted, outputs)
        speed = measure_speed(pair, spread(prompts, settings.speed_prompts), settings)
    scored = [_Scored(*parts) for parts in zip(answers, forecasts, predicted, measured, strict=True)]
    domains = sorted({item.answer.prompt.domain for item in scored} - {""})
    return Evaluation(
        settings=settings,
        dtype=dtype_name(pair.target.dtype),
        trained_on=trained_on,
        fed=pair.taps,
        all=_figures(scored, settings),
        without_loops=_figures([item for item in scored if not item.answer.loops], settings),
        loop_share=sum(item.answer.loops for item in scored) / len(scored),
        domains={name: _figures([item for item in scored if item.answer.prompt.domain == name], settings) for name in domains},
        agreement=agreement,
        speed=speed,
    )


def _figures(scored: list[_Scored], settings: EvaluateSettings) -> Figures:
    k = settings.num_draft_tokens
    return Figures(
        chats=len(scored),
        uniform_accuracy=uniform_accuracy([item.forecast for item in scored], k),
        predicted=acceptance([item.predicted for item in scored], k),
        measured=acceptance([item.measured for item in scored if item.measured is not None], k) if settings.measure else None,
    )
