"""What hypotheses are judged on: every state of the target over its own text, captured once.

Row p of a text reads (state p, token p+1) and is right if it names the target's own token after p+1; it counts if tokens
p+1 and p+2 are both the answer's.

Legend: B texts, T positions of the longest, S states of the target, H its hidden size, R rows (padded).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from eyas.capture.forward import capture_batch
from eyas.capture.plan import Text
from eyas.errors import UserError
from eyas.progress import Progress
from eyas.taps import Tap
from eyas.targets.target import Target

MIN_ROWS = 2000  # fewer give no verdict
_BATCH_TOKENS = 2048
_LONGEST = 1024  # of a text: longer ones are left out, attention grows with the square
_SEARCH_TOKENS = 512


@dataclass(frozen=True)
class Batch:
    """states [S][B, T, H]; row, valid, label [B, R]; label is the target's own token after row + 1, next_label that after row + 2.

    next_valid marks rows whose next row counts too: on them step 1 can be judged.
    """

    token_BT: torch.Tensor
    states: tuple[torch.Tensor, ...]
    row_BR: torch.Tensor
    valid_BR: torch.Tensor
    label_BR: torch.Tensor
    next_label_BR: torch.Tensor
    next_valid_BR: torch.Tensor

    @property
    def num_rows(self) -> int:
        return int(self.valid_BR.sum())


@dataclass(frozen=True)
class Evidence:
    """`taps` names the S states: every boundary, then `final`.

    search: a few of the texts, for the search. first: as many batches as a verdict needs, which weed out; rest: the others.
    """

    taps: tuple[Tap, ...]
    search: Batch
    first: tuple[Batch, ...]
    rest: tuple[Batch, ...]

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in (*self.first, *self.rest))


def gather_evidence(target: Target, texts: Iterable[Text], num_rows: int, search_rows: int) -> Evidence:
    """Run texts until `num_rows` rows count.

    Raises UserError if no text has a row that counts.
    """
    chosen = _choose(texts, num_rows)
    taps = (*(Tap(boundary) for boundary in range(target.num_layers + 1)), Tap(None))
    batches: list[Batch] = []
    with Progress("every state of the target", len(chosen), "texts") as progress:
        for group in _groups(chosen):
            batches.append(_batch(target, group, taps))
            progress.advance(len(group))
    random.Random(0).shuffle(batches)  # they are sorted by length, and the first ones must be like the others
    count, held = 0, 0
    while count < len(batches) and held < MIN_ROWS:
        held += batches[count].num_rows
        count += 1
    search = _batch(target, _search_texts(chosen, search_rows), taps)
    return Evidence(taps, search, tuple(batches[:count]), tuple(batches[count:]))


def _choose(texts: Iterable[Text], num_rows: int) -> list[Text]:
    chosen: list[Text] = []
    held = 0
    for text in texts:
        if text.num_scored_rows and len(text.token_ids) <= _LONGEST:
            chosen.append(text)
            held += text.num_scored_rows
        if held >= num_rows:
            break
    if not chosen:
        raise UserError("no text has two answer tokens in a row", allowed=f"chats with answers, of at most {_LONGEST} tokens")
    return chosen


def _search_texts(texts: Sequence[Text], num_rows: int) -> list[Text]:
    """Texts with many rows for their length first: what is not scored costs time all the same."""
    order = sorted(texts, key=lambda text: (len(text.token_ids) > _SEARCH_TOKENS, -text.num_scored_rows / len(text.token_ids)))
    chosen: list[Text] = []
    while order and sum(text.num_scored_rows for text in chosen) < num_rows:
        chosen.append(order.pop(0))
    return chosen


def _groups(texts: Sequence[Text]) -> list[list[Text]]:
    groups: list[list[Text]] = [[]]
    for text in sorted(texts, key=lambda text: len(text.token_ids)):
        if groups[-1] and len(text.token_ids) * (len(groups[-1]) + 1) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(text)
    return groups


def _batch(target: Target, texts: Sequence[Text], taps: tuple[Tap, ...]) -> Batch:
    captured = capture_batch(target, [text.token_ids for text in texts], taps)
    states_BTSH = _stack([item.states for item in captured]).unflatten(-1, (len(taps), target.hidden_size))
    device = states_BTSH.device
    rows = [torch.tensor(_scored(text), device=device) for text in texts]
    top1_BT = _stack([item.top1 for item in captured])
    row_BR = _stack(rows)
    valid_BR = _stack([torch.ones_like(row, dtype=torch.bool) for row in rows])
    following = torch.zeros_like(valid_BR)
    following[:, :-1] = valid_BR[:, 1:] & (row_BR[:, 1:] == row_BR[:, :-1] + 1)
    last = top1_BT.shape[1] - 1
    return Batch(
        token_BT=_stack([torch.tensor(text.token_ids, device=device) for text in texts]),
        states=tuple(state.contiguous() for state in states_BTSH.unbind(2)),
        row_BR=row_BR,
        valid_BR=valid_BR,
        label_BR=top1_BT.gather(1, (row_BR + 1).clamp(max=last)),
        next_label_BR=top1_BT.gather(1, (row_BR + 2).clamp(max=last)),
        next_valid_BR=following,
    )


def _scored(text: Text) -> list[int]:
    mask = text.loss_mask
    return [row for row in range(len(mask) - 2) if mask[row + 1] and mask[row + 2]]


def _stack(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
