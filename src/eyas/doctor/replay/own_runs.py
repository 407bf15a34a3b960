"""The whole target over texts of the dump, run once for all tests that ask what it says and holds there.

Shapes: T positions, n slots, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch

from eyas.capture.forward import capture_batch
from eyas.doctor.replay.samples import RawSample
from eyas.evaluate.answers import spread
from eyas.taps import Tap
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MOST, _FEWEST, _TOKENS = 96, 24, 4096
_TOGETHER = 8  # texts in one forward
_FAR = 0.4  # distance of states from those of another text, well beyond rounding and quantising
_BEGINNING = 4  # positions whose states are huge and alike in every text


class Apart(NamedTuple):
    """The median row's distance; the share of rows that are far; the most of these in a row."""

    distance: float
    far: float
    longest: int


@dataclass(frozen=True)
class OwnRun:
    """One sample of the dump. `place`: where it is among the samples; top1 [T]: the token that the target prefers after each position.

    apart: how far the sample's rows are from its own text's states. None if the sample's states are not of the size that its slots and
    this target make, or too few. labels_apart: the same of the labels' state.
    """

    place: int
    top1: torch.Tensor
    apart: Apart | None
    labels_apart: Apart | None


@torch.no_grad()
def run_samples(exam: Examination, target: Target) -> tuple[OwnRun, ...]:
    """Samples from all over the dump, as many as some thousand tokens make. Those whose ids the target lacks are left out."""
    good = [place for place, sample in enumerate(exam.samples) if _readable(target, sample)]
    chosen: list[int] = []
    tokens = 0
    for place in spread(good, _MOST):
        if tokens < _TOKENS or len(chosen) < _FEWEST:
            chosen.append(place)
            tokens += len(exam.samples[place].token_ids)
    chosen.sort(key=lambda place: len(exam.samples[place].token_ids))
    return tuple(run for start in range(0, len(chosen), _TOGETHER) for run in _run(exam, target, chosen[start : start + _TOGETHER]))


def _run(exam: Examination, target: Target, places: list[int]) -> list[OwnRun]:
    samples = [exam.samples[place] for place in places]
    taps = next((tuple(map(Tap.parse, sample.taps)) for sample in samples if sample.taps and _fits(target, sample)), ())
    captured = capture_batch(target, [sample.token_ids.tolist() for sample in samples], taps)
    found = []
    for place, sample, item in zip(places, samples, captured, strict=True):
        apart = _apart(sample.states, item.states) if taps and _fits(target, sample) else None
        labels = sample.teacher
        labels_apart = None
        if labels is not None and labels.shape == item.final.shape:
            labels_apart = _apart(labels if sample.normed else target.norm(labels.float()), item.final)
        found.append(OwnRun(place, item.top1, apart, labels_apart))
    return found


def _apart(found_TW: torch.Tensor, own_TW: torch.Tensor) -> Apart | None:
    """None of too few rows."""
    if len(own_TW) <= 2 * _BEGINNING:
        return None
    own_TW = own_TW.float()
    error_T = (found_TW.float() - own_TW).norm(dim=-1) / own_TW.norm(dim=-1).clamp_min(1e-9)
    error_T = error_T[_BEGINNING:].nan_to_num(nan=9.0)
    far_T = error_T > _FAR
    longest = max((len(list(rows)) for is_far, rows in groupby(far_T.tolist()) if is_far), default=0)
    return Apart(float(error_T.median()), float(far_T.float().mean()), longest)


def _readable(target: Target, sample: RawSample) -> bool:
    return len(sample.token_ids) > 0 and int(sample.token_ids.min()) >= 0 and int(sample.token_ids.max()) < target.vocab_size


def _fits(target: Target, sample: RawSample) -> bool:
    return sample.states.shape == (len(sample.token_ids), len(sample.taps or ()) * target.hidden_size)
