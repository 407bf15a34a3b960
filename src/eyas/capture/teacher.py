"""Does the state that the draft's labels come from give the target's own tokens?

The teacher's rows go through the target's head as this project understands it (norm, scale, softcap); the answer is
compared with what the model's own code prefers. A row that differs must be a near-tie of the model's own two logits.

Shapes: N rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from eyas.capture.forward import capture_batch, logit_rows, own_logits, pad
from eyas.errors import UserError
from eyas.taps import Tap
from eyas.targets.target import Target

REQUIRED_SHARE = 0.995
# Relative to the larger logit: a few roundings of the sums that make a logit.
_TIE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class TeacherCheck:
    """Counts of rows; `near_ties` and `wrong` are those on which the teacher prefers another token."""

    checked: int = 0
    agreeing: int = 0
    near_ties: int = 0
    wrong: int = 0

    def __add__(self, other: TeacherCheck) -> TeacherCheck:
        return TeacherCheck(
            self.checked + other.checked, self.agreeing + other.agreeing, self.near_ties + other.near_ties, self.wrong + other.wrong
        )

    @property
    def share(self) -> float:
        return self.agreeing / self.checked if self.checked else 0.0

    @property
    def passed(self) -> bool:
        return self.share >= REQUIRED_SHARE and self.wrong == 0

    def counts(self) -> dict[str, int]:
        return asdict(self)

    def to_json(self) -> dict[str, Any]:
        return {**self.counts(), "share": self.share, "passed": self.passed}


@torch.no_grad()
def check_teacher(target: Target, teacher_NH: torch.Tensor, final_NH: torch.Tensor, top1_N: torch.Tensor) -> TeacherCheck:
    """`teacher_NH` as stored (after the norm), `final_NH` and `top1_N` of the same rows as `capture_batch` gives them."""
    chunks = teacher_NH.split(logit_rows(target, teacher_NH.element_size()))
    found_N = torch.cat([target.head(chunk_1CH)[0].argmax(-1) for chunk_1CH in (chunk[None] for chunk in chunks)])
    other_D = (found_N != top1_N).nonzero().flatten()
    ties = _count_ties(target, final_NH[other_D], top1_N[other_D], found_N[other_D]) if len(other_D) else 0
    return TeacherCheck(len(top1_N), len(top1_N) - len(other_D), ties, len(other_D) - ties)


@torch.no_grad()
def check_whole_forward(target: Target, token_ids: list[int]) -> None:
    """The states come from the backbone alone; the model as a whole, called as a user calls it, must say the same tokens.

    Raises UserError if it does not: the family's row names wrong parts.
    """
    captured = capture_batch(target, [token_ids], ())[0]
    ids_1T, mask_1T = pad([token_ids], target.device)
    logits_TV = target.model(input_ids=ids_1T, attention_mask=mask_1T, use_cache=False).logits[0]
    differs_T = logits_TV.argmax(-1) != captured.top1
    gap_T = logits_TV.max(-1).values - logits_TV.gather(-1, captured.top1[:, None])[:, 0]
    wrong = int((differs_T & (gap_T > _TIE[target.dtype] * logits_TV.abs().max(-1).values)).sum())
    if wrong > (1.0 - REQUIRED_SHARE) * len(token_ids):
        raise UserError(
            f"{target.name}: the backbone with its head says other tokens than the whole model",
            got=f"{wrong} of {len(token_ids)} positions",
            remedy=f"mend the row of family {target.family.name} in eyas/targets/families.py",
        )


def refuse_wrong_teacher(check: TeacherCheck, teacher: Tap, num_layers: int) -> UserError:
    return UserError(
        f"the teacher {teacher} does not give the target's own tokens",
        got=f"{100 * check.share:.2f} % of {check.checked} rows agree; {check.near_ties} others are near-ties, {check.wrong} are not",
        allowed=f"at least {100 * REQUIRED_SHARE} % of the rows, the rest near-ties",
        remedy=f"use --teacher final (or boundary:{num_layers}); to train on wrong labels on purpose, add --allow-wrong-teacher",
    )


def _count_ties(target: Target, final_DH: torch.Tensor, own_D: torch.Tensor, other_D: torch.Tensor) -> int:
    """Of the rows on which two tokens are preferred, those whose logits differ by no more than rounding does."""
    ties, start = 0, 0
    for logits_CV in own_logits(target, final_DH):
        rows = slice(start, start + len(logits_CV))
        best_C, second_C = (logits_CV.gather(-1, ids_D[rows, None])[:, 0].float() for ids_D in (own_D, other_D))
        ties += int((best_C - second_C <= _TIE[target.dtype] * best_C.abs().maximum(second_C.abs())).sum())
        start = rows.stop
    return ties
