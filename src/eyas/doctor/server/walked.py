"""The walk of a draft over the answers that a server gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.doctor.replay.trial import bench_of
from eyas.doctor.server.asking import Pass
from eyas.errors import UserError
from eyas.evaluate.acceptance import Acceptance, acceptance, num_accepted
from eyas.evaluate.answers import Answer, Prompt
from eyas.evaluate.forecast import Forecast, forecast
from eyas.evaluate.settings import Pair
from eyas.evaluate.walk import walk

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_BATCH = 8


@dataclass(frozen=True)
class Walked:
    """Acceptance in servers' terms: they divide by all rounds, also by those that an answer's end cut short.

    `counts`: rounds that accepted each position.
    """

    figures: Acceptance
    counts: tuple[int, ...]

    @property
    def length(self) -> float:
        return self.figures.vllm_acceptance_length

    @property
    def unconditional(self) -> list[float]:
        return [count / self.figures.rounds for count in self.counts]

    @property
    def conditional(self) -> list[float | None]:
        return [count / past if past else None for count, past in zip(self.counts, (self.figures.rounds, *self.counts), strict=False)]

    def to_json(self) -> dict[str, Any]:
        return {**self.figures.to_json(), "conditional": self.conditional, "unconditional": self.unconditional}


def walked(exam: Examination, made: Pass, num_draft_tokens: int) -> Walked:
    """What the draft, as it came, gives on these answers. Raises UserError without ids, or for a draft that is fed otherwise."""
    subject, target = bench_of(exam).given, exam.loaded_target
    if target is None:
        raise UserError(exam.why_no_target)
    answers = answers_of(made)
    exam.judge.check([answer.token_ids for answer in answers])
    pair = Pair(target, subject.build(target), subject.taps)
    forecasts = forecast(pair, answers, num_draft_tokens, _BATCH, lambda count: None)
    return walk_all(answers, forecasts, num_draft_tokens)


def answers_of(made: Pass) -> list[Answer]:
    """Raises UserError for answers whose ids are not known."""
    found = []
    for question, reply in zip(made.questions, made.replies, strict=True):
        if question.ids is None or reply.tokens is None:
            raise UserError("the server gives no token ids, so the draft cannot be walked over its answers")
        if len(reply.tokens) > 1:
            found.append(Answer(Prompt(question.id, "", question.ids), reply.tokens, "length", False))
    if not found:
        raise UserError("the server's answers are empty")
    return found


def walk_all(answers: Sequence[Answer], forecasts: Sequence[Forecast], num_draft_tokens: int) -> Walked:
    """Engines propose all K to the last: the limit is their positions, not the answer's length."""
    most = max(len(answer.tokens) for answer in answers) + num_draft_tokens + 2
    rounds = [walk(answer.tokens, item.hits_RK.tolist(), num_draft_tokens, most) for answer, item in zip(answers, forecasts, strict=True)]
    found = acceptance(rounds, num_draft_tokens)
    assert found is not None, "answers of two tokens and more have rounds"
    every = [num_accepted(round_) for chat in rounds for round_ in chat]
    return Walked(found, tuple(sum(count > place for count in every) for place in range(num_draft_tokens)))
