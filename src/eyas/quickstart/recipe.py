"""How much of everything the quickstart does, so that it ends in time on two cores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from eyas.errors import UserError
from eyas.taps import Tap, parse_taps

_CHATS_PER_MINUTE = 48  # a quarter of a second each to capture; more text would leave too little time to learn from it
_EVALUATED_PER_MINUTE = 2


@dataclass(frozen=True)
class Recipe:
    """`target` and `shipped` are names of `eyas model list`.

    Args:
        minutes: of the whole show; what the other acts leave of it is spent on training.
        num_chats: chats to train on; where those that come along do not suffice the target writes more and answers them.
        answer_tokens: longest answer in training.
        evaluated: held-out prompts, spread over the domains, answered with at most `evaluated_tokens`.
        seconds_behind: what the acts behind the training are expected to take.
        tokens_per_batch, draft_vocab_size: small, for many quick steps; there is no time for few good ones.
        training_steps: instead of the time left; for tests.
    """

    minutes: float
    num_chats: int
    evaluated: int
    seconds_behind: float
    target: str = "smollm2-135m"
    shipped: str = "smollm2-135m-draft"
    taps: str = "layer:1,layer:14,layer:26"
    answer_tokens: int = 160
    prompt_tokens: int = 512
    evaluated_tokens: int = 128
    num_draft_tokens: int = 3
    lossless_prompts: int = 2
    speed_prompts: int = 3
    learning_rate: float = 6e-4
    tokens_per_batch: int = 512
    draft_vocab_size: int | None = 4096
    training_steps: int | None = None
    seed: int = 0

    @staticmethod
    def for_minutes(minutes: float) -> Recipe:
        """Raises UserError for less than two minutes: then there is nothing to see."""
        if not 2 <= minutes <= 600:
            raise UserError("--minutes is out of range", got=minutes, allowed="2 to 600")
        evaluated = max(10, min(20, int(_EVALUATED_PER_MINUTE * minutes)))
        return Recipe(minutes, int(_CHATS_PER_MINUTE * minutes), evaluated, seconds_behind=40 + 10 * evaluated)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def parsed_taps(self) -> tuple[Tap, ...]:
        return parse_taps(self.taps)


def wrong_taps(taps: tuple[Tap, ...], num_layers: int) -> tuple[Tap, ...]:
    """The first state dropped and a later one appended: a mistake that real engines have made.

    Where no later layer is left, every state is taken a layer too early instead.
    """
    boundaries = [num_layers if tap.boundary is None else tap.boundary for tap in taps]
    if max(boundaries) < num_layers:
        return (*taps[1:], Tap(min(num_layers, max(boundaries) + 3)))
    return tuple(Tap(max(0, boundary - 1)) for boundary in boundaries)
