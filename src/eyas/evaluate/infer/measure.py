"""A hypothesis measured exactly: the project's own unroll on every row, hit by hit, and whether one beats another.

One hypothesis beats another if it is right significantly more often, counted on the rows on which only one of them is
(McNemar's test, exact and one-sided). Where the count is only likely, the probabilities of the target's own tokens, compared
row by row, may decide: mostly they say more a row, but a draft that is fed something else can also be less sure of its misses.

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
SIGNIFICANT = 0.005  # of right and wrong rows; the rival was picked after looking, so one in twenty would not do
_LIKELY, _CERTAIN = 0.05, 1e-4  # of the same, and of probabilities; rows of one text are not independent


@dataclass(frozen=True)
class Hits:
    """first [N] and second: was the draft right at step 0, and at step 1 of the rows that have one.

    log_prob [N]: of the target's own token at step 0; 0 for a token that the draft does not know.
    """

    first: torch.Tensor
    second: torch.Tensor
    log_prob: torch.Tensor

    @property
    def accuracy(self) -> float:
        return float(self.first.float().mean())

    def part(self, num_rows: int) -> Hits:
        """Of the first rows only."""
        return Hits(self.first[:num_rows], self.second, self.log_prob[:num_rows])

    def with_rest(self, rest: Hits) -> Hits:
        return Hits(*(torch.cat(parts) for parts in zip(vars(self).values(), vars(rest).values(), strict=True)))


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
    log_prob = [torch.zeros(0)]
    for batch in batches:
        states_BTS = torch.cat([batch.states[place] for place in places], dim=-1).roll(hypothesis.shift, dims=1)
        outputs = unroll(draft, batch.token_BT, states_BTS.to(draft.fc.weight.dtype), num_steps, batch.row_BR)
        right_N, log_prob_N = _judge(draft, outputs[0], batch.label_BR, batch.valid_BR)
        first.append(right_N)
        log_prob.append(log_prob_N)
        if num_steps > 1:
            second.append(_judge(draft, outputs[1], batch.next_label_BR, batch.next_valid_BR)[0])
    return Hits(torch.cat(first), torch.cat(second), torch.cat(log_prob))


def _judge(
    draft: Eagle3Draft, output_BRD: torch.Tensor, label_BR: torch.Tensor, valid_BR: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right or not, and the log-probability of the label, each [N]."""
    rows_ND, label_N = output_BRD[valid_BR], label_BR[valid_BR]
    ids_V = draft.to_target(torch.arange(draft.config.draft_vocab_size, device=label_N.device))
    place_N = torch.searchsorted(ids_V, label_N).clamp(max=len(ids_V) - 1)
    best, log_prob = [], []
    for rows, place in zip(rows_ND.split(_HEAD_ROWS), place_N.split(_HEAD_ROWS), strict=True):
        logits_CV = draft.logits(rows).float()
        best.append(logits_CV.argmax(-1))
        log_prob.append(logits_CV.gather(-1, place[:, None])[:, 0] - logits_CV.logsumexp(-1))
    known_N = ids_V[place_N] == label_N
    return (ids_V[torch.cat(best)] == label_N).cpu(), torch.where(known_N, torch.cat(log_prob), 0.0).cpu()


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


def p_value_of_log_probs(better: Hits, worse: Hits) -> float:
    """The same for the probabilities of the target's own tokens: a paired test of their mean logarithm."""
    gain_N = (better.log_prob - worse.log_prob).double()
    spread = float(gain_N.std()) if len(gain_N) > 1 else 0.0
    if spread == 0.0:
        return 1.0
    return 0.5 * math.erfc(float(gain_N.mean()) / (spread / math.sqrt(len(gain_N))) / math.sqrt(2))


def beats(better: Hits, worse: Hits) -> bool:
    count = p_value(better.first, worse.first)
    return count <= SIGNIFICANT or (count <= _LIKELY and p_value_of_log_probs(better, worse) <= _CERTAIN)


def _log_binomial(total: int, count: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
