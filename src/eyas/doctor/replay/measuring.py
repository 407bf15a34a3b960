"""A subject measured on rows of real text: right or wrong, and how likely it finds the target's own token.

Rows of one text are not independent: an answer that goes in circles repeats one row's luck many times. So what is beyond chance
is reckoned over blocks of neighbouring rows (cluster-robust standard errors: Liang and Zeger 1986).

Legend: B texts, T positions, R rows, N rows that count, D hidden size of the draft, V draft vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eyas.doctor.replay.subject import Subject
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.evaluate.infer.evidence import Batch, Evidence
from eyas.evaluate.infer.measure import p_value
from eyas.targets.target import Target

_HEAD_ROWS = 512
_GAIN, _LARGE_GAIN = 0.015, 0.15  # in accuracy
_SURE = 1e-6  # of hits alone, over all that is tried
_LARGE_NATS, _FAR_LIKELIER = 0.3, 1.0
_BLOCK = 32  # rows of one text that count as one draw
Unroll = Callable[[Eagle3Draft, torch.Tensor, torch.Tensor, torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True)
class Result:
    """One step over N rows. hits: right or not; log_prob: of the label, -inf-free (unknown tokens count as 1 in 2·V).

    rows: the row of lm_head that the draft prefers; label: the target's token. block: which rows are neighbours in one text.
    """

    hits: torch.Tensor
    log_prob: torch.Tensor
    rows: torch.Tensor
    label: torch.Tensor
    block: torch.Tensor

    @property
    def accuracy(self) -> float:
        return float(self.hits.float().mean()) if len(self.hits) else 0.0

    @property
    def mean_log_prob(self) -> float:
        return float(self.log_prob.mean()) if len(self.log_prob) else 0.0


_MODULES: list[Eagle3Draft] = []  # of the configs measured last: making one takes longer than a run of a small draft


def _module(subject: Subject, target: Target) -> Eagle3Draft:
    """The subject's module. It is filled anew by the next subject of this config, so nobody may keep it."""
    held = next((module for module in _MODULES if module.config == subject.config), None)
    if held is not None and set(held.state_dict()) <= set(subject.tensors):
        held.load_state_dict({name: subject.tensors[name] for name in held.state_dict()}, assign=True)
        held.use_target(target)
        return held.requires_grad_(False)
    made = subject.build(target)
    _MODULES[:] = [made, *_MODULES[:3]]
    return made


@torch.no_grad()
def measure(
    subject: Subject, target: Target, evidence: Evidence, batches: Sequence[Batch], num_steps: int = 1, steps: Unroll | None = None
) -> list[Result]:
    """One result a step (at most two). `steps` runs them in another way than training does."""
    draft = _module(subject, target)
    places = [evidence.taps.index(tap) for tap in subject.taps]
    found: list[list[Result]] = [[] for _ in range(num_steps)]
    first_text = 0
    for batch in batches:
        block_BR = _blocks(batch, first_text)
        first_text += len(block_BR)
        states = [batch.states[place] for place in places]
        states = [target.norm(state) if slot in subject.normed else state for slot, state in enumerate(states)]
        states_BTS = torch.cat(states, dim=-1).roll(subject.shift, dims=1).float()
        token_BT = batch.token_BT.roll(-subject.ahead, dims=1)
        run = steps or (lambda draft, tokens, states, rows: unroll(draft, tokens, states, num_steps, rows))
        outputs = run(draft, token_BT, states_BTS, batch.row_BR)
        labels = ((batch.label_BR, batch.valid_BR), (batch.next_label_BR, batch.next_valid_BR))
        for step in range(num_steps):
            label_BR, valid_BR = labels[step]
            found[step].append(_judge(draft, subject, outputs[step][valid_BR], label_BR[valid_BR], block_BR[valid_BR]))
    return [_joined(parts) for parts in found]


def _blocks(batch: Batch, first_text: int) -> torch.Tensor:
    """A number [B, R] that rows of one text share with their neighbours."""
    text_B1 = first_text + torch.arange(len(batch.row_BR))[:, None]
    return text_B1 * (1 << 20) + batch.row_BR // _BLOCK


def _judge(draft: Eagle3Draft, subject: Subject, output_ND: torch.Tensor, label_N: torch.Tensor, block_N: torch.Tensor) -> Result:
    ids_V = subject.ids
    size = subject.config.vocab_size
    row_of = torch.full((size,), -1, dtype=torch.long)
    inside_V = (ids_V >= 0) & (ids_V < size)
    row_of[ids_V[inside_V]] = inside_V.nonzero().flatten()
    rows, log_prob = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0)]
    for output, label in zip(output_ND.split(_HEAD_ROWS), label_N.split(_HEAD_ROWS), strict=True):
        logits_CV = draft.logits(output).float()
        place = row_of[label]
        known = logits_CV.gather(-1, place.clamp_min(0)[:, None])[:, 0] - logits_CV.logsumexp(-1)
        floor = -torch.log(torch.tensor(2.0 * logits_CV.shape[-1]))
        rows.append(logits_CV.argmax(-1))
        log_prob.append(torch.where(place >= 0, known, floor))
    rows_N = torch.cat(rows)
    found_N = torch.nan_to_num(torch.cat(log_prob), nan=-50.0, neginf=-50.0)
    return Result(ids_V[rows_N] == label_N, found_N, rows_N, label_N, block_N)


def _joined(parts: list[Result]) -> Result:
    return Result(*(torch.cat([getattr(part, item.name) for part in parts]) for item in dataclasses.fields(Result)))


@dataclass(frozen=True)
class Comparison:
    """gain: in accuracy; nats: in mean log-probability of the target's token; p of the hits, z of the log-probabilities."""

    before: float
    after: float
    gain: float
    nats: float
    p: float
    z: float

    def decisive(self, suspected: bool, *, trained: bool = False, proven: bool = True) -> bool:
        """Beyond chance and worth a fix. Where another test already spoke for it, chance alone is asked.

        trained: the draft is good as it is. Such a one is at its best as it was trained, so a smaller gain tells, if every row
        speaks for it. proven: these texts are of the kind that it was trained for. If they are not, any change may do some good, and
        only a large gain tells, in hits and in probability.
        """
        if trained and (
            (self.gain >= 0.01 and self.z >= 4.5 and self.p <= 0.02)
            or (self.gain >= _GAIN and self.z >= 8 and self.p <= 0.05)
            or (self.gain >= 2 * _GAIN and self.z >= 2 and self.p <= _SURE)  # a few rows that are far off blur the probability
        ):
            return True
        if suspected and self.p <= 0.02 and self.z >= 3 and self.gain > 0:
            return True
        lost = self.before < 0.25 and self.nats >= 0.4 and self.z >= 8 and self.gain >= 0  # so bad that few rows turn right by one fix
        far = proven and self.nats >= _FAR_LIKELIER and self.z >= 10 and self.gain >= 0  # no draft is so badly calibrated
        if not proven:
            return lost or (self.p <= 5e-4 and self.z >= 4 and self.gain >= _LARGE_GAIN and self.nats >= _LARGE_NATS)
        return lost or far or (self.p <= 5e-4 and self.z >= 4 and self.gain >= max(_GAIN, 0.04 * self.before))


def compare(after: Result, before: Result) -> Comparison:
    """p and z are those of blocks of rows, or of single rows where these say less."""
    nats_N = (after.log_prob - before.log_prob).double().clamp(-20, 20)
    gain_N = after.hits.double() - before.hits.double()
    p = max(p_value(after.hits, before.hits), 0.5 * math.erfc(_sigmas(gain_N, after.block) / math.sqrt(2)))
    return Comparison(
        before=before.accuracy,
        after=after.accuracy,
        gain=after.accuracy - before.accuracy,
        nats=float(nats_N.mean()) if len(nats_N) else 0.0,
        p=p,
        z=_sigmas(nats_N, after.block),
    )


def _sigmas(value_N: torch.Tensor, block_N: torch.Tensor) -> float:
    """The mean in its own standard errors: the larger of that over rows and that over blocks."""
    if len(value_N) < 2:
        return 0.0
    mean = value_N.mean()
    _, place_N = block_N.unique(return_inverse=True)
    rest_N = value_N - mean
    of_blocks = torch.zeros(int(place_N.max()) + 1, dtype=torch.double).index_add_(0, place_N, rest_N).square().sum()
    error = float(torch.maximum(of_blocks, rest_N.square().sum()).sqrt() / len(value_N))
    return float(mean) / error if error > 0 else 0.0
