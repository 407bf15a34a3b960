"""What the draft would propose at every row of an answer: its steps run in a batch, with the true tokens fed in.

For an answer a0..a[n-1] behind a prompt of P tokens, row r (of n - 1) is the draft's row P - 1 + r: it reads the state
at P - 1 + r and the token a[r], and its step k proposes a[r+1+k].

Legend: R rows of one answer, K steps, T positions of the longest text, S = n·H.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eyas.capture.forward import capture_batch
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.evaluate.answers import Answer
from eyas.evaluate.settings import Pair


@dataclass(frozen=True)
class Forecast:
    """proposed_RK: target ids that step k proposes at row r. choice_R: the target's own top-1 after a[r].

    hits_RK: the proposal is the token that the answer has there; False beyond its end.
    """

    proposed_RK: torch.Tensor
    choice_R: torch.Tensor
    hits_RK: torch.Tensor


def forecast(pair: Pair, answers: Sequence[Answer], num_steps: int, batch: int, done: Callable[[int], None]) -> list[Forecast]:
    """One forecast an answer, in order; `done` is told how many answers each batch finished."""
    order = sorted(range(len(answers)), key=lambda index: len(answers[index].token_ids))
    found: dict[int, Forecast] = {}
    for start in range(0, len(order), batch):
        group = order[start : start + batch]
        found.update(zip(group, _forecast_batch(pair, [answers[index] for index in group], num_steps), strict=True))
        done(len(group))
    return [found[index] for index in range(len(answers))]


def _forecast_batch(pair: Pair, answers: Sequence[Answer], num_steps: int) -> list[Forecast]:
    captured = capture_batch(pair.target, [answer.token_ids for answer in answers], pair.taps)
    return forecast_states(pair.draft, answers, [item.states for item in captured], [item.top1 for item in captured], num_steps)


@torch.no_grad()
def forecast_states(
    draft: Eagle3Draft, answers: Sequence[Answer], states_TS: Sequence[torch.Tensor], top1_T: Sequence[torch.Tensor], num_steps: int
) -> list[Forecast]:
    """One batch, from states [T, S] and the target's own choices [T] of each whole text, as `capture_batch` gives them."""
    device = states_TS[0].device
    token_BT = _stack([torch.tensor(answer.token_ids, device=device) for answer in answers])
    states_BTS = _stack(states_TS)
    row_BR = _stack([_rows(answer, device) for answer in answers])
    if row_BR.shape[1] == 0:  # no answer of this batch goes on behind its first token
        steps = [row_BR.new_zeros(row_BR.shape)] * num_steps
    else:
        outputs = unroll(draft, token_BT, states_BTS, num_steps, row_BR)
        steps = [draft.to_target(draft.logits(output_BRH).argmax(-1)) for output_BRH in outputs]
    proposed_BRK = torch.stack(steps, dim=-1)
    results = []
    for answer, choice_T, proposed_RK in zip(answers, top1_T, proposed_BRK, strict=True):
        rows = len(answer.tokens) - 1
        first = len(answer.prompt.token_ids)
        results.append(_judged(answer, proposed_RK[:rows].cpu(), choice_T[first : first + rows].cpu()))
    return results


def _judged(answer: Answer, proposed_RK: torch.Tensor, choice_R: torch.Tensor) -> Forecast:
    rows, steps = proposed_RK.shape
    truth_RK = torch.full((rows, steps), -1)
    for step in range(steps):
        truth_RK[: max(0, rows - step), step] = torch.tensor(answer.tokens[1 + step :], dtype=torch.long)
    return Forecast(proposed_RK, choice_R, proposed_RK == truth_RK)


def _rows(answer: Answer, device: torch.device) -> torch.Tensor:
    first = len(answer.prompt.token_ids) - 1
    return torch.arange(first, first + len(answer.tokens) - 1, device=device)


def _stack(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pad on the right with zeros: row 0 and token 0 are valid, and nothing reads what they give."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
