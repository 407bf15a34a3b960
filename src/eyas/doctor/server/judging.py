"""Is what a server said the target's own greedy text? Every token is judged, by one forward of the target over each answer.

A token that is not the target's first choice after all that stands before it is a slip. In bf16 two ways of computing the
same logits differ, so a slip is a tie if the two logits lie no farther apart than bf16 moves such logits: twice the
largest movement of a top logit between the target in fp32 and in bf16, on that very text.

Legend: N tokens of an answer, T of prompt and answer, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from eyas.capture.forward import capture_batch, own_logits
from eyas.doctor.server.protocol import Reply
from eyas.doctor.server.questions import TOKENS, Question
from eyas.errors import UserError
from eyas.evaluate.answers import Prompt, greedy_answers
from eyas.targets.loading import load_target
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_BATCH_TOKENS = 2048
_NUM_LOGITS = 64
_ENOUGH, _FAR = 12, 3.0


@dataclass(frozen=True)
class Slip:
    """`token` is what the server said at `place` of its answer, None where it ended or only its text is known; `choice` is the target's.

    `gap`: by how much the target prefers its own, in logits of fp32.
    """

    question: Question
    before: tuple[int, ...]
    place: int
    token: int | None
    choice: int
    gap: float

    @property
    def text(self) -> tuple[int, ...]:
        """All tokens in front of the place."""
        return (*(self.question.ids or ()), *self.before)


class Judge:
    """Raises UserError where the target cannot be run over the answers."""

    def __init__(self, exam: Examination, target: Target) -> None:
        self._exam, self.target = exam, target
        self._ties: dict[tuple[int, ...], float] = {}

    def slips(self, questions: Sequence[Question], replies: Sequence[Reply]) -> list[list[Slip]]:
        """Of each answer, in order of place."""
        if any(reply.tokens is None for reply in replies):
            return self._by_text(questions, replies)
        found: list[list[Slip]] = []
        for group in _groups(questions, replies):
            found += self._batch([questions[index] for index in group], [replies[index] for index in group])
        return found

    @torch.no_grad()
    def logits(self, questions: Sequence[Question], replies: Sequence[Reply]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each answer its tokens [N] and the target's logits [N, V] in front of them. Raises UserError for ids that it does not have."""
        found = []
        for question, reply in zip(questions, replies, strict=True):
            tokens, first = self._to_its_end(reply.tokens or ()), len(question.ids or ()) - 1
            text = [*(question.ids or ()), *tokens]
            self.check([text])
            [item] = capture_batch(self.target, [text], (), want_top1=False)
            rows = list(own_logits(self.target, item.final[first : first + len(tokens)])) if tokens else []
            if rows:
                found.append((torch.tensor(tokens), torch.cat(rows).float()))
        return found

    def is_tie(self, slip: Slip) -> bool:
        """Measured on the slip's own text, until enough were measured to know that a gap is far beyond all of them."""
        if slip.text not in self._ties:
            if len(self._ties) >= _ENOUGH and slip.gap > _FAR * max(self._ties.values()):
                return False
            self._ties[slip.text] = self._movement(slip.text)
        return slip.gap <= self._ties[slip.text]

    def worst(self, slips: Sequence[Slip]) -> Slip | None:
        """The slip with the largest gap, unless it is a tie: then the smaller ones are, too."""
        worst = max(slips, key=lambda slip: slip.gap, default=None)
        return None if worst is None or self.is_tie(worst) else worst

    def words(self, slip: Slip) -> str:
        moved = self._ties.get(slip.text)
        tie = "" if moved is None else f"; bf16 moves such logits by up to {moved:.3g}"
        said = "ended or said something else" if slip.token is None else f"said {self._token(slip.token)}"
        wanted = f"the target says {self._token(slip.choice)}, {slip.gap:.3g} logits above"
        return f"prompt {slip.question.id}, token {slip.place}: the server {said}, {wanted}{tie}"

    # -- forwards ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _batch(self, questions: Sequence[Question], replies: Sequence[Reply]) -> list[list[Slip]]:
        texts = [[*(question.ids or ()), *(reply.tokens or ())] for question, reply in zip(questions, replies, strict=True)]
        self.check(texts)
        captured = capture_batch(self.target, texts, (), want_top1=False)
        found = []
        for question, reply, item in zip(questions, replies, captured, strict=True):
            tokens, first = self._to_its_end(reply.tokens or ()), len(question.ids or ()) - 1
            count = len(tokens) + (reply.stopped and (not tokens or tokens[-1] not in self.target.stop_ids))
            rows = list(own_logits(self.target, item.final[first : first + count])) if count else []
            found.append(self._slips_of(question, tokens, torch.cat(rows).float()) if rows else [])
        return found

    def _to_its_end(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What a server says behind the target's end of turn is nobody's: that it goes on there is said once."""
        end = next((place for place, token in enumerate(tokens) if token in self.target.stop_ids), None)
        if end is None or end == len(tokens) - 1:
            return tokens
        note = "the server goes on behind the target's end of turn: give it the target's generation_config.json"
        if note not in self._exam.notes:
            self._exam.notes.append(note)
        return tokens[: end + 1]

    def _slips_of(self, question: Question, tokens: tuple[int, ...], logits_NV: torch.Tensor) -> list[Slip]:
        best_N, choice_N = logits_NV.max(-1)
        found = []
        for place, choice in enumerate(choice_N.tolist()):
            said = tokens[place] if place < len(tokens) else None
            if said is None:  # the server ended here, and the token that made it end is not told
                stops = torch.tensor(self.target.stop_ids, dtype=torch.long)
                gap = float(best_N[place] - logits_NV[place, stops].max()) if len(stops) else float(best_N[place])
            else:
                gap = float(best_N[place] - logits_NV[place, said])
            if gap > 0:
                found.append(Slip(question, tokens[:place], place, said, choice, gap))
        return found

    def check(self, texts: Sequence[Sequence[int]]) -> None:
        """Raises UserError for token ids that the target does not have."""
        most = max(max(text) for text in texts)
        if most >= self.target.vocab_size:
            raise UserError(
                "the server's answer holds a token id that the target does not have", got=most, allowed=f"0 to {self.target.vocab_size - 1}"
            )

    def _by_text(self, questions: Sequence[Question], replies: Sequence[Reply]) -> list[list[Slip]]:
        """Where a server gives no ids: its text against the target's own, up to the first place where they part."""
        prompts = [Prompt(question.id, "", question.ids or ()) for question in questions]
        found: list[list[Slip]] = []
        for question, reply, answer in zip(questions, replies, greedy_answers(self.target, prompts, TOKENS, 8), strict=True):
            spoken = tuple(token for token in answer.tokens if token not in self.target.stop_ids)
            place = self._parting(reply.text, spoken)
            ended = len(spoken) < len(answer.tokens)
            found.append([] if place is None or (place == len(spoken) and not ended) else [self._open_slip(question, answer.tokens, place)])
        return found

    def _parting(self, text: str, spoken: tuple[int, ...]) -> int | None:
        """The first token of the target's own that the text does not hold; all of them if the text goes on; None if they are equal."""
        text = text.strip()
        for place in range(len(spoken), -1, -1):
            own = self.target.tokenizer.decode(list(spoken[:place]), skip_special_tokens=True).strip()
            if text.startswith(own.rstrip("\ufffd")):
                return None if place == len(spoken) and text == own else place
        return 0

    def _open_slip(self, question: Question, tokens: tuple[int, ...], place: int) -> Slip:
        """What the server said there is not known, so the target's second choice stands for it."""
        best = self._last_logits(self.target, [*(question.ids or ()), *tokens[:place]]).topk(2).values
        return Slip(question, tokens[:place], place, None, tokens[place], float(best[0] - best[1]))

    # -- ties --------------------------------------------------------------------------------------------------

    def _movement(self, text: tuple[int, ...]) -> float:
        full_V = self._last_logits(self.target, text)
        half_V = self._last_logits(self._half, text)
        top_V = full_V.topk(min(_NUM_LOGITS, len(full_V))).indices
        step = float(full_V.abs().max()) * torch.finfo(torch.bfloat16).eps
        return 2 * float((full_V[top_V] - half_V[top_V]).abs().max()) + step

    @torch.no_grad()
    def _last_logits(self, target: Target, text: Sequence[int]) -> torch.Tensor:
        [item] = capture_batch(target, [list(text)], (), want_top1=False)
        return next(iter(own_logits(target, item.final[-1:])))[0].float()

    @cached_property
    def _half(self) -> Target:
        """The target once more, in bf16; it is loaded only when something differs."""
        exhibits = self._exam.exhibits
        return load_target(
            str(exhibits.target), device=self.target.device, dtype=torch.bfloat16, trust_remote_code=exhibits.trust_remote_code, fast=False
        )

    def _token(self, token: int) -> str:
        return f"{self.target.tokenizer.decode([token])!r}"


def _groups(questions: Sequence[Question], replies: Sequence[Reply]) -> list[list[int]]:
    """Indices in order, so many at once as a batch of padded texts may hold."""
    lengths = [len(question.ids or ()) + len(reply.tokens or ()) for question, reply in zip(questions, replies, strict=True)]
    groups: list[list[int]] = [[]]
    for index, length in enumerate(lengths):
        longest = max([length, *(lengths[other] for other in groups[-1])])
        if groups[-1] and longest * (len(groups[-1]) + 1) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(index)
    return groups
