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
from eyas.draft.unroll import unroll
from eyas.engine.request import Output, Round
from eyas.evaluate.answers import Answer
from eyas.evaluate.measure import common_length
from eyas.evaluate.settings import Pair

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


def compare_rounds(answer: Sequence[int], predicted: Sequence[Round], output: Output) -> tuple[int, list[Split]]:
    """(rounds compared, splits) of one chat. Rounds are matched by the token at which they start.

    After a draft's tie both go on over the same text and meet again. Where the texts part nothing behind is comparable.
    """
    tokens = output.tokens
    same = common_length(answer, tokens)
    splits: list[Split] = []
    mine, theirs = _by_start(predicted), _by_start(output.rounds)
    starts = [start for start in sorted(mine.keys() & theirs.keys()) if start < same - 1]
    for start in starts:
        room = same - 1 - start  # proposals on which both sides saw the same text
        splits += _compare(mine[start], theirs[start], start, None if same == len(answer) == len(tokens) else room)
    if same < min(len(answer), len(tokens)):
        splits.append(Split("target", same - 1, 0, f"token {same}: {answer[same]} in plain, {tokens[same]} in speculative decoding"))
    elif len(answer) != len(tokens):
        splits.append(Split("bookkeeping", same, 0, f"{len(answer)} tokens by plain, {len(tokens)} by speculative decoding"))
    return len(starts), splits


def _compare(mine: Round, theirs: Round, start: int, room: int | None) -> list[Split]:
    """`room` limits the comparison to so many proposals, where the texts part within or behind this round."""
    where = f"round at token {start + 1}: predicted and measured"
    accepted = [round_.num_accepted if room is None else min(round_.num_accepted, room) for round_ in (mine, theirs)]
    if accepted[0] != accepted[1]:
        return [Split("draft", start, min(accepted), f"{where} {mine.num_accepted} and {theirs.num_accepted} accepted")]
    if room is not None and accepted[0] >= room:
        return []
    for name in ("num_proposed", "num_emitted"):
        if getattr(mine, name) != getattr(theirs, name):
            return [Split("bookkeeping", start, 0, f"{where} {name} {getattr(mine, name)} and {getattr(theirs, name)}")]
    return []


def agree(pair: Pair, answers: Sequence[Answer], predicted: Sequence[Sequence[Round]], outputs: Sequence[Output]) -> Agreement:
    """Judge all chats. `predicted` and `outputs` are in the order of `answers`."""
    relative = _relative_difference(predicted, [output.rounds for output in outputs])
    rounds = sum(len(output.rounds) for output in outputs)
    if pair.target.dtype != torch.float32:
        holds = relative <= TOLERANCE if rounds >= MIN_ROUNDS else None
        return Agreement(f"acceptance length within {TOLERANCE:.0%} over at least {MIN_ROUNDS} rounds", holds, rounds, relative, (), ())
    ties: list[Tie] = []
    compared = 0
    for answer, rounds_of, output in zip(answers, predicted, outputs, strict=True):
        count, splits = compare_rounds(answer.tokens, rounds_of, output)
        compared += count
        ties += [prove(pair, answer, output.tokens, split) for split in splits]
    proven, unexplained = (tuple(tie for tie in ties if tie.proven is wanted) for wanted in (True, False))
    return Agreement("equal round by round, except for proven ties", not unexplained, compared, relative, proven, unexplained)


@torch.no_grad()
def prove(pair: Pair, answer: Answer, tokens: Sequence[int], split: Split) -> Tie:
    """Look at the logits behind a split; `tokens` are those measured. Bookkeeping has none and is never excused."""
    chat = answer.prompt.id
    if split.kind == "bookkeeping":
        return Tie(chat, split.what, None, None)
    if split.kind == "target":
        logits_V = _target_logits(pair, answer, split.row)
        rivals = logits_V[[answer.tokens[split.row + 1], tokens[split.row + 1]]]
        gap = logits_V.max() - rivals.min()  # both must be at the top, not only close to each other
    else:
        logits_V = _draft_logits(pair, answer, split.row, split.step)
        ids_V = pair.draft.to_target(torch.arange(len(logits_V), device=logits_V.device))
        accepted_V = ids_V == answer.tokens[split.row + 1 + split.step]
        if not bool(accepted_V.any()):
            return Tie(chat, split.what + ", but the draft does not know the token accepted", None, None)
        gap = (logits_V[accepted_V].max() - logits_V[~accepted_V].max()).abs()
    return Tie(chat, split.what, float(gap), TIE * float(logits_V.abs().max()))


def _target_logits(pair: Pair, answer: Answer, row: int) -> torch.Tensor:
    """The target's logits [V] after the answer's token `row`, run alone."""
    end = len(answer.prompt.token_ids) + row + 1
    [captured] = capture_batch(pair.target, [answer.token_ids[:end]], (), want_top1=False)
    return pair.target.head(captured.final[None, -1:])[0, 0].float()


def _draft_logits(pair: Pair, answer: Answer, row: int, step: int) -> torch.Tensor:
    """The draft's logits [V] at one row and step of one answer, run alone."""
    [captured] = capture_batch(pair.target, [answer.token_ids], pair.taps, want_top1=False)
    token_1T = torch.tensor([answer.token_ids], device=captured.states.device)
    row_11 = torch.tensor([[len(answer.prompt.token_ids) - 1 + row]], device=captured.states.device)
    outputs = unroll(pair.draft, token_1T, captured.states[None], step + 1, row_11)
    return pair.draft.logits(outputs[step])[0, 0].float()


def _by_start(rounds: Sequence[Round]) -> dict[int, Round]:
    """Rounds by the number of answer tokens, the prefill's left out, that stood before them."""
    found, start = {}, 0
    for round_ in rounds:
        found[start] = round_
        start += round_.num_emitted
    return found


def _relative_difference(predicted: Sequence[Sequence[Round]], measured: Sequence[Sequence[Round]]) -> float:
    def length(chats: Sequence[Sequence[Round]]) -> float:
        rounds = [round_ for chat in chats for round_ in chat]
        return sum(round_.num_emitted for round_ in rounds) / len(rounds) if rounds else 1.0

    return abs(length(predicted) - length(measured)) / length(measured)
