"""What a user asks for and what comes back, counted as the definitions say.

A round is one propose + verify step. It emits the accepted draft tokens and one more; the token of the prefill belongs
to no round. All counts are of tokens that the user gets: a stop token inside an accepted run ends the round there, and
what was proposed behind it was never judged, so it is not counted as proposed either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from eyas.errors import UserError

MAX_DRAFT_TOKENS = 128  # a round; buffers are made for so many


def check_num_draft_tokens(count: int) -> None:
    """Raises UserError for a number of proposals a round that no engine takes."""
    if not 1 <= count <= MAX_DRAFT_TOKENS:
        raise UserError(
            "the number of draft tokens is out of range",
            got=count,
            allowed=f"1 to {MAX_DRAFT_TOKENS}",
            remedy="leave the draft out for plain decoding",
        )


FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy and makes `seed` irrelevant; `top_p` 1 and `top_k` 0 are off.

    Raises UserError for values outside their ranges.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError("max_new_tokens is out of range", got=self.max_new_tokens, allowed="1 or more")
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError("temperature is out of range", got=self.temperature, allowed="0 (greedy) or a positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError("top_p is out of range", got=self.top_p, allowed="above 0, up to 1 (off)")
        if self.top_k < 0:
            raise UserError("top_k is out of range", got=self.top_k, allowed="0 (off) or a positive number")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class Round:
    """One round of one request. `tokens` are those that it emitted, accepted draft tokens first.

    The prefill is reported in the same shape when streaming, with its one token and nothing counted.
    """

    num_proposed: int
    num_accepted: int
    num_emitted: int
    tokens: tuple[int, ...]
    is_prefill: bool = False


@dataclass(frozen=True)
class Output:
    """A finished answer. `tokens` end with the stop token if there was one, as transformers' `generate` returns it.

    `prefill_seconds` runs until the first token is known; `decode_seconds` is the time of the rounds, which requests
    decoded in one batch share.
    """

    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    rounds: tuple[Round, ...]
    prefill_seconds: float
    decode_seconds: float


@dataclass
class Request:
    """A request inside the engine; it grows round by round."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @staticmethod
    def of(prompt: list[int], params: SamplingParams, stop_ids: tuple[int, ...], index: int = 0) -> Request:
        """`index` tells requests of one seed apart: two equal prompts are not answered with the same random numbers."""
        generator = torch.Generator().manual_seed((params.seed * 1_000_003 + index) % 2**63)
        return Request(list(prompt), params, frozenset() if params.ignore_eos else frozenset(stop_ids), generator)

    @property
    def num_remaining(self) -> int:
        """Tokens that the user may still get."""
        return self.params.max_new_tokens - len(self.tokens)

    def take_first(self, token: int) -> Round:
        """Add the prefill's token."""
        self._append([token])
        return Round(0, 0, 0, (token,), is_prefill=True)

    def take_round(self, tokens: list[int], num_proposed: int) -> Round:
        """Add what a round emitted: its accepted draft tokens and one more, cut where the user's answer ends."""
        num_accepted = len(tokens) - 1
        stop = next((place for place, token in enumerate(tokens) if token in self.stop_ids), None)
        if stop is not None and stop < num_accepted:
            tokens = tokens[: stop + 1]
            num_accepted = num_proposed = stop + 1
        assert len(tokens) <= self.num_remaining, "proposals are limited to what the user may still get"
        self._append(tokens)
        made = Round(num_proposed, num_accepted, len(tokens), tuple(tokens))
        self.rounds.append(made)
        return made

    def output(self) -> Output:
        assert self.finish_reason is not None, "not finished"
        return Output(
            prompt_ids=tuple(self.prompt),
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            rounds=tuple(self.rounds),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
        )

    def _append(self, tokens: list[int]) -> None:
        self.tokens.extend(tokens)
        if self.tokens[-1] in self.stop_ids:
            self.finish_reason = "stop"
        elif self.num_remaining == 0:
            self.finish_reason = "length"
