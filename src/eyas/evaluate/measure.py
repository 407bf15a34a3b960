"""What really decoding gives: measured rounds, tokens a second, and whether the output is the target's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.engine.ties import explain_difference
from eyas.evaluate.answers import Prompt, max_length
from eyas.evaluate.settings import EvaluateSettings, Pair
from eyas.progress import Progress
from eyas.targets.devices import dtype_name
from eyas.targets.target import Target


@dataclass(frozen=True)
class Speed:
    """Tokens a second while decoding, the prefill left out, one request at a time."""

    plain: float | None
    speculative: float | None
    tokens: int


@dataclass(frozen=True)
class Lossless:
    """`differences` name each prompt whose speculative output is not what transformers' `generate` gives."""

    prompts: int
    tokens: int
    dtype: str
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "differences": list(self.differences)}


def measure(pair: Pair, prompts: Sequence[Prompt], settings: EvaluateSettings) -> list[Output]:
    """Greedy speculative decoding of every prompt, in order."""
    batch = min(settings.batch, len(prompts))
    with _speculative(pair, prompts, settings, batch) as engine, Progress("decoding with the draft", len(prompts), "answers") as progress:
        asked = [prompt.token_ids for prompt in prompts]
        return engine.generate(asked, SamplingParams(max_new_tokens=settings.max_new_tokens), progress.advance)


def measure_speed(pair: Pair, prompts: Sequence[Prompt], settings: EvaluateSettings) -> Speed:
    """Plain and speculative decoding in turn on each prompt, so that a disturbance of the machine meets both."""
    plain = Engine(pair.target, max_length=max_length(prompts, settings.max_new_tokens))
    seconds, tokens = [0.0, 0.0], [0, 0]
    with plain, _speculative(pair, prompts, settings, 1) as speculative:
        engines = (plain, speculative)
        for engine in engines:  # the first calls set up kernels and memory
            engine.generate([prompts[0].token_ids], SamplingParams(max_new_tokens=min(8, settings.max_new_tokens)))
        for number, prompt in enumerate(prompts):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                [output] = engines[which].generate([prompt.token_ids], SamplingParams(max_new_tokens=settings.max_new_tokens))
                seconds[which] += output.decode_seconds
                tokens[which] += len(output.tokens) - 1
    rates = [count / time if time > 0 else None for count, time in zip(tokens, seconds, strict=True)]
    return Speed(rates[0], rates[1], tokens[1])


def check_lossless(pair: Pair, prompts: Sequence[Prompt], settings: EvaluateSettings) -> Lossless:
    """Compare greedy speculative output with transformers' own `generate`, token for token and in length.

    Every difference counts, also one that is explained by a tie.
    """
    differences, tokens = [], 0
    for prompt, output in zip(prompts, measure(pair, prompts, settings), strict=True):
        expected = transformers_greedy(pair.target, prompt.token_ids, settings.max_new_tokens)
        got = list(output.tokens)
        tokens += len(expected)
        if (difference := explain_difference(pair.target, prompt.token_ids, got, expected)) is not None:
            differences.append(f"prompt {prompt.id}, {difference.text()}")
    return Lossless(len(prompts), tokens, dtype_name(pair.target.dtype), tuple(differences))


@torch.no_grad()
def transformers_greedy(target: Target, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The target alone, by transformers; stops where the target's generation config says."""
    ids_1T = torch.tensor([list(prompt_ids)], device=target.device)
    stop: dict[str, Any] = {"eos_token_id": list(target.stop_ids) or None, "pad_token_id": 0}
    output = target.model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), max_new_tokens=max_new_tokens, do_sample=False, **stop)
    return [int(token) for token in output[0, ids_1T.shape[1] :]]


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    shorter = min(len(left), len(right))
    return next((index for index in range(shorter) if left[index] != right[index]), shorter)


def _speculative(pair: Pair, prompts: Sequence[Prompt], settings: EvaluateSettings, max_batch: int) -> Engine:
    length = max_length(prompts, settings.max_new_tokens)
    return Engine(pair.target, pair.draft, pair.taps, num_draft_tokens=settings.num_draft_tokens, max_batch=max_batch, max_length=length)
