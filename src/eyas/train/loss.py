"""The objective: cross-entropy against the target's own distribution, at every step of the unroll, in fp32.

Step k's loss is weighted decay^k, as in EAGLE-3 (Li et al. 2025). The teacher's distribution is taken over the draft
vocabulary; a row whose most likely target token is outside of it teaches nothing and is left out of the loss, but
counts as a miss in every accuracy.

Legend: B samples, R rows, M rows with a given step, H hidden size, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.train.batches import Batch
from eyas.train.fused import soft_head_loss


class TeacherHead:
    """The rows of the target's lm_head that the draft knows, with the family's logit rule, on states after the norm."""

    def __init__(self, weight_VH: torch.Tensor, scale: float, softcap: float | None, dtype: torch.dtype) -> None:
        self._weight_VH, self._scale, self._softcap = weight_VH.to(dtype), scale, softcap

    def __call__(self, teacher_MH: torch.Tensor) -> torch.Tensor:
        """Probabilities [M, V] in fp32."""
        logits = F.linear(teacher_MH.to(self._weight_VH.dtype), self._weight_VH).float() * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits.softmax(-1)


@dataclass
class StepCounts:
    """Sums over rows, one entry a TTT step; added up over batches with `add`.

    `rows` have the step; `hits` are right at it; `alive` are right at it and at all steps before, out of
    `alive_rows`, the rows that were right at all steps before.
    """

    loss: list[float]
    rows: list[int]
    hits: list[int]
    alive: list[int]
    alive_rows: list[int]

    @staticmethod
    def zero(num_steps: int) -> StepCounts:
        return StepCounts([0.0] * num_steps, [0] * num_steps, [0] * num_steps, [0] * num_steps, [0] * num_steps)

    def add(self, other: StepCounts) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]

    @property
    def accuracy(self) -> list[float]:
        """Uniform accuracy a step: over all rows that have it."""
        return [hits / max(1, rows) for hits, rows in zip(self.hits, self.rows, strict=True)]

    @property
    def conditional_accuracy(self) -> list[float]:
        """Accuracy a step among rows that were right at all steps before."""
        return [alive / max(1, rows) for alive, rows in zip(self.alive, self.alive_rows, strict=True)]

    @property
    def simulated_acceptance_length(self) -> float:
        """1 + c0 + c0·c1 + ...: uniform over rows, so 2-5 % above what the walk of `evaluate` gives."""
        total, product = 1.0, 1.0
        for rate in self.conditional_accuracy:
            product *= rate
            total += product
        return total

    @property
    def mean_loss(self) -> float:
        return self.loss[0] / max(1, self.rows[0])


def ttt_loss(draft: Eagle3Draft, head: TeacherHead, batch: Batch, num_steps: int, decay: float) -> tuple[torch.Tensor, StepCounts]:
    """The weighted loss (a scalar to call backward on) and the counts of all steps."""
    outputs = unroll(draft, batch.token_BT, batch.states_BTS, num_steps, batch.row_BR)
    probs = head(batch.teacher_BRH.flatten(0, 1))
    top1 = batch.top1_BR.flatten()
    known = draft.t2d[top1]
    places = [batch.step_index(step) for step in range(num_steps)]
    label_M = torch.cat([label for _, label in places])
    input_MH = torch.cat([draft.head_input(output.flatten(0, 1)[here]) for output, (here, _) in zip(outputs, places, strict=True)])
    losses_M, best_M = soft_head_loss(input_MH, draft.head_weight, probs, label_M, known[label_M])  # all steps: one product
    hit_M = draft.to_target(best_M) == top1[label_M]

    counts = StepCounts.zero(num_steps)
    total = probs.new_zeros(())
    alive = batch.valid_BR.flatten()
    sizes = [len(here) for here, _ in places]
    for step, ((here, label), losses, hit) in enumerate(zip(places, losses_M.split(sizes), hit_M.split(sizes), strict=True)):
        total = total + decay**step * losses.sum() / known[label].sum().clamp(min=1)
        _count(counts, step, losses.detach(), hit, alive[here])
        still = torch.zeros_like(alive)
        still[here] = hit & alive[here]
        alive = still
    return total, counts


def _count(counts: StepCounts, step: int, losses_M: torch.Tensor, hit_M: torch.Tensor, alive_M: torch.Tensor) -> None:
    counts.loss[step] = float(losses_M.sum())
    counts.rows[step] = len(hit_M)
    counts.hits[step] = int(hit_M.sum())
    counts.alive_rows[step] = int(alive_M.sum())
    counts.alive[step] = int((hit_M & alive_M).sum())
