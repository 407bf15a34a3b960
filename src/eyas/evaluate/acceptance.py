"""What acceptance means, in one place. Every figure that Eyas prints about acceptance comes from here.

A round proposes `num_proposed` draft tokens, accepts the first `num_accepted` of them and gives the user
`num_emitted` tokens. The token that the prefill gives belongs to no round.

    acceptance length        emitted / rounds: tokens that the user gets from one forward of the target
    vLLM acceptance length   1 + accepted / rounds: what vLLM's log prints; larger, because a round that ends in an
                             accepted stop token emits no token of the target behind it
    conditional rate i       of the rounds that proposed position i and accepted all before it: accepted at i
    unconditional rate i     of all rounds that proposed position i: accepted at i

What a round proposed behind an accepted stop token was never judged, so it counts as not proposed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eyas.engine.request import Round

CONFIDENCE = 0.95
_RESAMPLES = 2000
_SEED = 20240


@dataclass(frozen=True)
class Acceptance:
    """Figures over a set of chats. A rate is None where no round proposed that position."""

    num_draft_tokens: int
    chats: int
    rounds: int
    proposed: int
    accepted: int
    emitted: int
    acceptance_length: float
    vllm_acceptance_length: float
    conditional: tuple[float | None, ...]
    unconditional: tuple[float | None, ...]
    confidence_interval: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Acceptance:
        """The inverse of `to_json`."""
        parts: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
        return Acceptance(**parts)


def acceptance(chats: Sequence[Sequence[Round]], num_draft_tokens: int) -> Acceptance | None:
    """Figures over the rounds of every chat; None if there was no round at all.

    Args:
        chats: the rounds of each chat in order; a chat that ended with its prefill has none.
        num_draft_tokens: K, the most a round may propose.
    """
    every = [round_ for chat in chats for round_ in chat]
    if not every:
        return None
    for round_ in every:
        _check(round_, num_draft_tokens)
    accepted = sum(num_accepted(round_) for round_ in every)
    emitted = sum(round_.num_emitted for round_ in every)
    conditional, unconditional = _rates(every, num_draft_tokens)
    return Acceptance(
        num_draft_tokens=num_draft_tokens,
        chats=len(chats),
        rounds=len(every),
        proposed=sum(num_judged(round_) for round_ in every),
        accepted=accepted,
        emitted=emitted,
        acceptance_length=emitted / len(every),
        vllm_acceptance_length=1 + accepted / len(every),
        conditional=conditional,
        unconditional=unconditional,
        confidence_interval=bootstrap([(sum(r.num_emitted for r in chat), len(chat)) for chat in chats]),
    )


def num_accepted(round_: Round) -> int:
    """Accepted draft tokens that reached the user: none behind a stop token."""
    return min(round_.num_accepted, round_.num_emitted)


def num_judged(round_: Round) -> int:
    """Proposals on which a verdict counts. A round that gave no token of the target's own ended inside its drafts."""
    return num_accepted(round_) if round_.num_emitted <= round_.num_accepted else round_.num_proposed


def bootstrap(emitted_and_rounds: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """A 95 % interval for emitted / rounds by drawing whole chats again: rounds of one chat are not independent."""
    counts = np.array([pair for pair in emitted_and_rounds if pair[1] > 0], dtype=np.float64)
    picks = np.random.default_rng(_SEED).integers(0, len(counts), size=(_RESAMPLES, len(counts)))
    sums = counts[picks].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def sglang_num_draft_tokens(num_draft_tokens: int) -> int:
    """SGLang's speculative_num_draft_tokens counts the verified token in front of the drafts as well; vLLM's
    num_speculative_tokens and Eyas's K do not."""
    return num_draft_tokens + 1


def _rates(rounds: Sequence[Round], num_draft_tokens: int) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    conditional: list[float | None] = []
    unconditional: list[float | None] = []
    for position in range(num_draft_tokens):
        proposed = [round_ for round_ in rounds if num_judged(round_) > position]
        reached = sum(num_accepted(round_) >= position for round_ in proposed)
        accepted = sum(num_accepted(round_) > position for round_ in proposed)
        conditional.append(_rate(accepted, reached))
        unconditional.append(_rate(accepted, len(proposed)))
    return tuple(conditional), tuple(unconditional)


def _rate(count: int, total: int) -> float | None:
    if total == 0:
        return None
    rate = count / total
    assert 0.0 <= rate <= 1.0, f"an acceptance rate of {rate}"
    return rate


def _check(round_: Round, num_draft_tokens: int) -> None:
    assert 0 <= round_.num_accepted <= round_.num_proposed <= num_draft_tokens, f"accepted more than proposed: {round_}"
    assert 1 <= round_.num_emitted <= round_.num_accepted + 1, f"emitted does not follow from accepted: {round_}"
