"""Predicted against measured. In fp32 every round must be equal, except where a tie is proven; lower precisions are held
to a tolerance on the acceptance length.

A tie: two tokens whose logits are closer than arithmetic in another order (batched, or a token at a time) can tell
apart. It is proven by running the text once more, alone, and looking at the two logits. Nothing else excuses a
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from eyas.capture.forward import capture_batch
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.engine.request import Output, Round
from eyas.evaluate.answers import Answer
from eyas.taps import Tap
from eyas.targets.target import Target

TIE = 1e-4  # of the largest logit; fp32 rounding through thirty layers stays ten times below it
TOLERANCE = 0.03
MIN_ROUNDS = 2000


@dataclass(frozen=True)
class Split:
    """Where prediction and measurement part. `row` is the answer's token before the disputed one, `step` the draft's."""

    kind: Literal["target", "draft", "bookkeeping"]
    row: int
    step: int
    what: str


@dataclass(frozen=True)
class Tie:
    """A split with its proof: the gap between the disputed token's logit and its best rival's, and what is allowed."""

    chat: str
    what: str
    gap: float | None
    allowed: float | None

    @property
    def proven(self) -> bool:
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed


@dataclass(frozen=True)
class Agreement:
    """`holds` is None where there were too few rounds to judge (only in lower precisions)."""

    rule: str
    holds: bool | None
    rounds_compared: int
    relative_difference: float
    ties: tuple[Tie, ...]
    unexplained: tuple[Tie, ...]


def compare_rounds(answer: Sequence[int], predicted: Sequence[Round], tokens: Sequence[int], measured: Sequence[Round]) -> tuple[int, list[Split]]:
    """(rounds compared, splits) of one chat. Rounds are matched by the token at which they start.

    After a draft's tie both go on over the same text and meet again. Where the texts part nothing behind is comparable.
    """
    same = _common(answer, tokens)
    splits: list[Split] = []
    mine, theirs = _by_start(predicted), _by_start(measured)
    starts = [start for start in sorted(mine.keys() & theirs.keys()) if start < same - 1]
    for start in starts:
        room = same - 1 - start  # proposals of which both sides have the same verdict to give
        left, right = mine[start], theirs[start]
        kept = (min(left.num_accepted, room), min(right.num_accepted, room))
        if left.num_proposed != right.num_proposed:
            splits.append(Split("bookkeeping", start, 0, f"round at token {start + 1}: {left.num_proposed} proposed by prediction, {right.num_proposed} measured"))
        elif kept[0] != kept[1]:
            splits.append(Split("draft", start, min(kept), f"round at token {start + 1}: {left.num_accepted} accepted by prediction, {right.num_accepted} measured"))
        elif same == len(answer) == len(tokens) and left.num_emitted != right.num_emitted:
            splits.append(Split("bookkeeping", start, 0, f"round at token {start + 1}: {left.num_emitted} emitted by prediction, {right.num_emitted} measured"))
    if same < min(len(answer), len(tokens)):
        splits.append(Split("target", same - 1, 0, f"token {same}: {answer[same]} in plain decoding, {tokens[same]} in speculative decoding"))
    elif len(answer) != len(tokens):
        splits.append(Split("bookkeeping", same, 0, f"{len(answer)} tokens by plain decoding, {len(tokens)} by speculative decoding"))
    return len(starts), splits


def agree(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], answers: Sequence[Answer], predicted: Sequence[Sequence[Round]], outputs: Sequence[Output]) -> Agreement:
    """Judge all chats. `predicted` and `outputs` are in the order of `answers`."""
    relative = _relative_difference(predicted, [output.rounds for output in outputs])
    rounds = sum(len(output.rounds) for output in outputs)
    if target.dtype != torch.float32:
        holds = relative <= TOLERANCE if rounds >= MIN_ROUNDS else None
        return Agreement(f"acceptance length within {TOLERANCE:.0%} over at least {MIN_ROUNDS} rounds", holds, rounds, relative, (), ())
    ties: list[Tie] = []
    compared = 0
    for answer, rounds_of, output in zip(answers, predicted, outputs, strict=True):
        count, splits = compare_rounds(answer.tokens, rounds_of, output.tokens, output.rounds)
        compared += count
        ties += [prove(target, draft, taps, answer, list(output.tokens), split) for split in splits]
    unexplained = tuple(tie for tie in ties if not tie.proven)
    return Agreement("equal round by round, except for proven ties", not unexplained, compared, relative, tuple(tie for tie in ties if tie.proven), unexplained)


@torch.no_grad()
def prove(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], answer: Answer, tokens: list[int], split: Split) -> Tie:
    """Look at the logits behind a split. Bookkeeping has none and is never excused."""
    what = split.what
    if split.kind == "bookkeeping":
        return Tie(answer.prompt.id, what, None, None)
    if split.kind == "target":
        first = len(answer.prompt.token_ids)
        [captured] = capture_batch(target, [answer.token_ids[: first + split.row + 1]], (), want_top1=False)
        logits_V = target.head(captured.final[None, -1:])[0, 0].float()
        pair = logits_V[torch.tensor([answer.tokens[split.row + 1], tokens[split.row + 1]], device=logits_V.device)]
        gap = float(logits_V.max() - pair.min())  # both must be at the top, not only close to each other
        return Tie(answer.prompt.id, what, gap, TIE * float(logits_V.abs().max()))
    logits_V = draft_logits(target, draft, taps, answer, split.row, split.step)
    ids_V = draft.to_target(torch.arange(len(logits_V), device=logits_V.device))
    disputed_V = ids_V == answer.tokens[split.row + 1 + split.step]
    if not bool(disputed_V.any()):
        return Tie(answer.prompt.id, what + "; the draft does not know the token that one side saw accepted", None, None)
    gap = float((logits_V[disputed_V].max() - logits_V[~disputed_V].max()).abs())
    return Tie(answer.prompt.id, what, gap, TIE * float(logits_V.abs().max()))


@torch.no_grad()
def draft_logits(target: Target, draft: Eagle3Draft, taps: tuple[Tap, ...], answer: Answer, row: int, step: int) -> torch.Tensor:
    """The draft's logits [V] at one row and step of one answer, run alone."""
    [captured] = capture_batch(target, [answer.token_ids], taps, want_top1=False)
    token_1T = torch.tensor([answer.token_ids], device=target.device)
    row_11 = torch.tensor([[len(answer.prompt.token_ids) - 1 + row]], device=target.device)
    outputs = unroll(draft, token_1T, captured.states[None], step + 1, row_11)
    return draft.logits(outputs[step])[0, 0].float()


def _by_start(rounds: Sequence[Round]) -> dict[int, Round]:
    """Rounds by the number of answer tokens, the prefill's left out, that stood before them."""
    found, start = {}, 0
    for round_ in rounds:
        found[start] = round_
        start += round_.num_emitted
    return found


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _relative_difference(predicted: Sequence[Sequence[Round]], measured: Sequence[Sequence[Round]]) -> float:
    def length(chats: Sequence[Sequence[Round]]) -> float:
        rounds = [round_ for chat in chats for round_ in chat]
        return sum(round_.num_emitted for round_ in rounds) / len(rounds) if rounds else 1.0

    return abs(length(predicted) - length(measured)) / length(measured)
