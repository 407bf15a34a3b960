"""From files to an evaluation: what `eyas evaluate` does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.data.chats import read_chats, read_some
from eyas.draft.checkpoint import read_wiring, require_taps
from eyas.engine.pair import ServingPair, load_pair
from eyas.errors import UserError
from eyas.evaluate.answers import Prompt, render_prompts, spread
from eyas.evaluate.evaluate import Evaluation, evaluate
from eyas.evaluate.measure import Lossless, check_lossless
from eyas.evaluate.settings import EvaluateSettings, Pair, fed_taps
from eyas.progress import console
from eyas.taps import Tap, format_taps
from eyas.targets.describe import target_wiring

LOSSLESS_TOKENS = 64  # a prompt; fp32 is slow, and a wrong token shows within a few rounds


@dataclass(frozen=True)
class Job:
    """One draft on one file of chats.

    Args:
        max_chats: use only so many, spread evenly over the file.
        lossless_prompts: on how many of them greedy output is held against transformers' in fp32; 0 for none.
        as_if: feed the draft these states instead of its own.
    """

    target: str
    draft: Path
    chats: Path
    settings: EvaluateSettings
    device: torch.device
    dtype: torch.dtype
    trust_remote_code: bool = False
    max_chats: int | None = None
    lossless_prompts: int = 4
    as_if: tuple[Tap, ...] | None = None

    def __post_init__(self) -> None:
        if self.max_chats is not None and self.max_chats < 1:
            raise UserError("--max-chats must be at least 1", got=self.max_chats)
        if self.lossless_prompts < 0:
            raise UserError("--lossless-prompts must not be negative", got=self.lossless_prompts)


@dataclass(frozen=True)
class Result:
    """`lossless` is None if it was not asked for."""

    evaluation: Evaluation
    lossless: Lossless | None
    target_name: str
    warnings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """False if measurement contradicts prediction, or if the output is not the target's own."""
        agreement = self.evaluation.agreement
        return (agreement is None or agreement.holds is not False) and (self.lossless is None or self.lossless.holds)


def run_job(job: Job) -> Result:
    """Wirings are compared before a tensor is read. Raises UserError for anything wrong with what was given."""
    chats = list(read_chats(job.chats)) if job.max_chats is None else read_some(job.chats, job.max_chats)[0]
    warnings = list(_check_taps(job))
    pair = _load(job, job.dtype)
    prompts, skipped = render_prompts(pair.target, chats, job.settings.max_new_tokens)
    warnings += [*pair.warnings, *skipped]
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False, highlight=False)
    assert pair.draft is not None
    evaluation = evaluate(pair.target, pair.draft, read_wiring(job.draft), prompts, job.settings, job.as_if)
    lossless = _lossless(job, pair, spread(prompts, job.lossless_prompts)) if job.lossless_prompts else None
    return Result(evaluation, lossless, pair.target.name, tuple(warnings))


def _check_taps(job: Job) -> list[str]:
    """Raises UserError for taps that the target lacks. Returns a warning if others than the draft's own are fed."""
    wiring = read_wiring(job.draft)
    require_taps(wiring, job.draft)
    layers = target_wiring(job.target, job.trust_remote_code).num_target_layers
    assert layers is not None
    fed = fed_taps(wiring, layers, job.as_if)
    if fed == wiring.taps:
        return []
    return [f"as if: the draft is fed {format_taps(fed)} on purpose; it was trained on {format_taps(wiring.taps)}"]


def _load(job: Job, dtype: torch.dtype) -> ServingPair:
    return load_pair(job.target, job.draft, job.device, dtype, job.trust_remote_code)


def _lossless(job: Job, pair: ServingPair, prompts: list[Prompt]) -> Lossless:
    """In fp32, if need be on a copy of its own: in lower precisions two ways of computing the same differ at ties."""
    exact = pair if pair.target.dtype == torch.float32 else _load(job, torch.float32)
    assert exact.draft is not None
    shorter = dataclasses.replace(job.settings, max_new_tokens=min(LOSSLESS_TOKENS, job.settings.max_new_tokens))
    return check_lossless(Pair(exact.target, exact.draft, job.as_if or exact.taps), prompts, shorter)
