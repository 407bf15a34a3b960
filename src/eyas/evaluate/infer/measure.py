"""A hypothesis measured exactly: the project's own unroll on every row, hit by hit, and whether one beats another.

Two hypotheses are compared on the rows on which only one of them is right (McNemar's test, exact and one-sided).

Legend: B texts, T positions, S = n·H, R rows, N rows that count, D hidden size of the draft.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.evaluate.infer.evidence import Batch, Evidence
from eyas.taps import Tap

_HEAD_ROWS = 512


@dataclass(frozen=True)
class Hits:
    """first [N] and second: was the draft right at step 0, and at step 1 of the rows that have one."""

    first: torch.Tensor
    second: torch.Tensor

    @property
    def accuracy(self) -> float:
        return float(self.first.float().mean())

    def with_rest(self, rest: Hits) -> Hits:
        return Hits(torch.cat([self.first, rest.first]), torch.cat([self.second, rest.second]))


@dataclass(frozen=True)
class Hypothesis:
    """What is fed to the draft and how it is run. `shift`: row p reads the state of position p - shift."""

    taps: tuple[Tap, ...]
    shift: int = 0


@torch.no_grad()
def measure(draft: Eagle3Draft, evidence: Evidence, hypothesis: Hypothesis, batches: Sequence[Batch], num_steps: int = 1) -> Hits:
    """On `batches` of the evidence."""
    places = [evidence.taps.index(tap) for tap in hypothesis.taps]
    first, second = [torch.zeros(0, dtype=torch.bool)], [torch.zeros(0, dtype=torch.bool)]
    for batch in batches:
        states_BTS = torch.cat([batch.states[place] for place in places], dim=-1).roll(hypothesis.shift, dims=1)
        outputs = unroll(draft, batch.token_BT, states_BTS.to(draft.fc.weight.dtype), num_steps, batch.row_BR)
        first.append(_hits(draft, outputs[0], batch.label_BR, batch.valid_BR))
        if num_steps > 1:
            second.append(_hits(draft, outputs[1], batch.next_label_BR, batch.next_valid_BR))
    return Hits(torch.cat(first), torch.cat(second))


def _hits(draft: Eagle3Draft, output_BRD: torch.Tensor, label_BR: torch.Tensor, valid_BR: torch.Tensor) -> torch.Tensor:
    rows_ND, label_N = output_BRD[valid_BR], label_BR[valid_BR]
    chunks = zip(rows_ND.split(_HEAD_ROWS), label_N.split(_HEAD_ROWS), strict=True)
    return torch.cat([draft.to_target(draft.logits(rows).argmax(-1)) == label for rows, label in chunks]).cpu()


def variant(draft: Eagle3Draft, **changes: Any) -> Eagle3Draft:
    """The same weights under another config: switches that leave the tensors as they are, or another RoPE."""
    config = dataclasses.replace(draft.config, **changes)
    with torch.device(draft.fc.weight.device):
        other = Eagle3Draft(config)
    other.to(draft.fc.weight.dtype).load_state_dict(draft.state_dict())
    other.share_target_of(draft)
    return other.eval().requires_grad_(False)


def p_value(better: torch.Tensor, worse: torch.Tensor) -> float:
    """How likely `better` wins this often by chance if both are equally good. 1 where they never differ."""
    wins, losses = int((better & ~worse).sum()), int((worse & ~better).sum())
    total = wins + losses
    if total == 0:
        return 1.0
    terms = [_log_binomial(total, count) for count in range(wins, total + 1)]
    largest = max(terms)
    return min(1.0, math.exp(largest - total * math.log(2)) * sum(math.exp(term - largest) for term in terms))


def _log_binomial(total: int, count: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
