"""What really decoding gives: measured rounds, tokens a second, and whether the output is the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eyas.draft.model import Eagle3Draft
from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.evaluate.answers import Prompt, max_length
from eyas.taps import Tap
from eyas.targets.target import Target


@dataclass(frozen=True)
class Speed:
    """Tokens a second while decoding, the prefill left out, one request at a time."""

    plain: float
    speculative: float
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


def measure(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], prompts: Sequence[Prompt], num_draft_tokens: int, max_new_tokens: int, batch: int) -> list[Output]:
    """Greedy speculative decoding of every prompt, in order."""
    engine = Engine(target, draft, taps, num_draft_tokens=num_draft_tokens, max_batch=min(batch, len(prompts)), max_length=max_length(prompts, max_new_tokens))
    return engine.generate([list(prompt.token_ids) for prompt in prompts], SamplingParams(max_new_tokens=max_new_tokens))


def measure_speed(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], prompts: Sequence[Prompt], num_draft_tokens: int, max_new_tokens: int) -> Speed:
    """Plain and speculative decoding in turn on each prompt, so that a disturbance of the machine meets both."""
    length = max_length(prompts, max_new_tokens)
    plain = Engine(target, None, (), max_batch=1, max_length=length)
    speculative = Engine(target, draft, taps, num_draft_tokens=num_draft_tokens, max_batch=1, max_length=length)
    params = SamplingParams(max_new_tokens=max_new_tokens)
    for engine in (plain, speculative):
        engine.generate([list(prompts[0].token_ids)], SamplingParams(max_new_tokens=min(8, max_new_tokens)))
    seconds = {id(plain): 0.0, id(speculative): 0.0}
    tokens = {id(plain): 0, id(speculative): 0}
    for number, prompt in enumerate(prompts):
        for engine in (plain, speculative) if number % 2 == 0 else (speculative, plain):
            [output] = engine.generate([list(prompt.token_ids)], params)
            seconds[id(engine)] += output.decode_seconds
            tokens[id(engine)] += len(output.tokens) - 1
    rate = {key: tokens[key] / seconds[key] if seconds[key] > 0 else 0.0 for key in seconds}
    return Speed(rate[id(plain)], rate[id(speculative)], tokens[id(speculative)])


def check_lossless(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], prompts: Sequence[Prompt], num_draft_tokens: int, max_new_tokens: int) -> Lossless:
    """Compare greedy speculative output with transformers' own `generate`, token for token and in length."""
    outputs = measure(target, draft, taps, prompts, num_draft_tokens, max_new_tokens, batch=len(prompts))
    differences, tokens = [], 0
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = transformers_greedy(target, prompt.token_ids, max_new_tokens)
        tokens += len(expected)
        got = list(output.tokens)
        if got != expected:
            at = next((index for index, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), min(len(got), len(expected)))
            differences.append(f"prompt {prompt.id}: from token {at} on; lengths {len(got)} and {len(expected)}")
    return Lossless(len(prompts), tokens, str(target.dtype).removeprefix("torch."), tuple(differences))


@torch.no_grad()
def transformers_greedy(target: Target, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The target alone, by transformers; stops where the target's generation config says."""
    ids_1T = torch.tensor([list(prompt_ids)], device=target.device)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False, "eos_token_id": list(target.stop_ids) or None, "pad_token_id": 0}
    output = target.model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), **settings)
    return [int(token) for token in output[0, ids_1T.shape[1] :]]
