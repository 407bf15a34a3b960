"""The questions that a server is asked, once an examination: each pass is made when a test first needs it.

    alone      prompts one after another, each under a salt of its own: no prefix of it is in a cache
    again      the same ones once more: their prefixes are cached now
    together   the same ones and more, all at once
    long       prompts of many chunks, all at once
    probes     from places inside of the answers, a few tokens on: the first is the prefill's, the second the first round's

Answers end where the target ends them, or after so many tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eyas.data.chats import Chat, read_chats
from eyas.doctor.reading_files import Told, readings_of
from eyas.doctor.reading_files import together as joined_figures
from eyas.doctor.readings import Reading, read
from eyas.doctor.server.client import Client, ServerError
from eyas.doctor.server.counters import Counters, between, counters_in, settled
from eyas.doctor.server.protocol import Reply, Server
from eyas.doctor.server_figures import ServerFigures
from eyas.errors import UserError
from eyas.evaluate.answers import Prompt, render_prompts, spread
from eyas.progress import Progress

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.targets.target import Target

Item = TypeVar("Item")
TOKENS = 64
_ALONE, _TOGETHER, _LONG = 8, 24, 3
_PROBES, _PROBE_TOKENS = 5, 8  # of each answer; so long that a first round proposes all it can
_LONGEST = 3000  # tokens of a long prompt: more than one chunk of every default, and cheap enough to compute here
_HELD_OUT = Path(__file__).parents[2] / "data" / "prompts" / "heldout.jsonl"


@dataclass(frozen=True)
class Question:
    """`id` is like no other's. `ids` is None where there is no tokenizer to make them: then the chat goes as it is."""

    id: str
    chat: Chat | None
    ids: tuple[int, ...] | None


@dataclass(frozen=True)
class Pass:
    """`figures`: what the server counted meanwhile, or in words why that is not known."""

    name: str
    questions: tuple[Question, ...]
    replies: tuple[Reply, ...]
    figures: ServerFigures | str
    cached_tokens: int

    def first(self, count: int) -> Pass:
        """A part of the answers; what the server counted is of all."""
        return replace(self, questions=self.questions[:count], replies=self.replies[:count])


class Asking:
    """What was asked of one server. Every pass raises UserError if the server fails; a failed one is not tried again."""

    def __init__(self, exam: Examination) -> None:
        assert exam.exhibits.server is not None
        self._exam = exam
        self.server = Server(Client(exam.exhibits.server), exam.notes)
        self.passes: list[Pass] = []
        self._lost: UserError | None = None
        self._failed: dict[str, UserError] = {}
        self.salt = f"eyas-{secrets.token_hex(8)}"

    # -- passes ------------------------------------------------------------------------------------------------

    @cached_property
    def alone(self) -> Pass:
        return self._pass("alone", self.questions[:_ALONE], 1, "alone")

    @cached_property
    def again(self) -> Pass:
        """Raises UserError if the first pass could not be made."""
        questions = self.alone.questions
        return self._pass("again", questions, 1, "alone")

    @cached_property
    def together(self) -> Pass:
        questions = [*self.alone.questions, *self.questions[_ALONE:_TOGETHER]]
        return self._pass("together", questions, len(questions), "together")

    @cached_property
    def long(self) -> Pass:
        """Raises UserError if the server's or the target's positions leave no room for a long prompt."""
        return self._pass("long", self._long_questions(), _LONG, "long")

    @cached_property
    def probes(self) -> Pass:
        """Raises UserError if the server gives no token ids to go on from."""
        found = []
        for question, reply in zip(self.alone.questions, self.alone.replies, strict=True):
            if question.ids is None or reply.tokens is None:
                raise UserError("the server gives no token ids, so nothing can be asked from the middle of an answer")
            places = {(2 * number + 1) * len(reply.tokens) // (2 * _PROBES) for number in range(_PROBES)}
            found += [Question(f"{question.id}+{at}", None, (*question.ids, *reply.tokens[:at])) for at in sorted(places - {0})]
        return self._pass("probes", found, 1, "probes", _PROBE_TOKENS)

    # -- what it counted ---------------------------------------------------------------------------------------

    def readings(self, told: Told) -> list[Reading]:
        """The pass with the most rounds, if one was made and counted; and what the server has counted since its start."""
        counted = [made.figures for made in self.passes if not isinstance(made.figures, str)]
        best = max(counted, key=lambda figures: figures.rounds or 0.0, default=None)
        return [*([] if best is None else [read(best)]), *self._since_start(told)]

    def _since_start(self, told: Told) -> tuple[Reading, ...]:
        told = replace(told, num_draft_tokens=told.num_draft_tokens or self.server.about.num_draft_tokens)
        try:
            return readings_of(self._first_page, "the server, since its start", told)
        except UserError:  # it has no such page, or has not speculated yet
            return ()

    @cached_property
    def _first_page(self) -> str:
        """/metrics as it was before we asked anything; empty if there is none."""
        try:
            return self.server.client.get_text("/metrics")
        except ServerError as error:
            self._exam.notes.append(f"the server's counters cannot be read: {error.what}")
            return ""

    # -- questions ---------------------------------------------------------------------------------------------

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The user's own prompts where --data was given, no two alike. Raises UserError if there are none that can be asked."""
        target = self._exam.loaded_target
        if target is None:
            chats = [_opened(chat) for chat in read_chats(self._data(folder_allowed=False))]
            unlike_chats = list({repr(chat.messages): chat for chat in chats if chat.messages}.values())
            if not unlike_chats:
                raise UserError("--data has no chat with a user turn", remedy="give chats as JSON Lines")
            return tuple(self._with_ids([Question(f"{number}/{chat.id}", chat, None) for number, chat in _mixed(unlike_chats)]))
        unlike = list({prompt.token_ids: prompt for prompt in self._prompts(target)}.values())
        return tuple(Question(f"{number}/{prompt.id}", None, prompt.token_ids) for number, prompt in _mixed(unlike))

    def _prompts(self, target: Target) -> list[Prompt]:
        data = self._data(folder_allowed=True)
        if data.is_dir():
            from eyas.capture.corpus import read_corpus

            texts = read_corpus(data, str(self._exam.exhibits.target), self._exam.exhibits.trust_remote_code).texts
            starts = ((text, next((place for place, own in enumerate(text.loss_mask) if own), 0)) for text in texts)
            found = [Prompt(text.id, "", tuple(text.token_ids[:start])) for text, start in starts if start > 1]
        else:
            found = render_prompts(target, list(read_chats(data)), TOKENS)[0]
        room = (self.server.about.max_length or 1 << 30) - TOKENS - 32
        fitting = [prompt for prompt in found if len(prompt.token_ids) <= room]
        if not fitting:
            raise UserError(
                f"no prompt fits into the server's {self.server.about.max_length} positions", remedy="give shorter ones by --data"
            )
        return fitting

    def _data(self, folder_allowed: bool) -> Path:
        data = self._exam.exhibits.data or _HELD_OUT
        if data.is_dir() and not folder_allowed:
            raise UserError("--data is a prepared folder, which holds token ids", remedy="give --target as well, or the chats themselves")
        return data

    def _with_ids(self, questions: Sequence[Question]) -> list[Question]:
        """The server's own rendering of each chat, where it gives that: from then on the ids can be asked."""
        first = questions[0]
        assert first.chat is not None
        if self.server.chat(first.chat.messages, 1, self.salt).prompt_tokens is None:
            return list(questions)
        found = []
        for question in questions:
            assert question.chat is not None
            found.append(Question(question.id, question.chat, self.server.chat(question.chat.messages, 1, self.salt).prompt_tokens))
        return found

    def _long_questions(self) -> list[Question]:
        if any(question.ids is None for question in self.questions):
            raise UserError("without token ids no long prompt can be made", remedy="give --target")
        target = self._exam.loaded_target
        limits = [
            self.server.about.max_length or _LONGEST,
            getattr(target.config, "max_position_embeddings", _LONGEST) if target else _LONGEST,
        ]
        length = min(_LONGEST, *limits) - TOKENS - 32
        shorter = max(len(question.ids or ()) for question in self.questions)
        if length < 2 * shorter:
            raise UserError(f"{min(limits)} positions leave no room for a prompt longer than those asked before")
        found = []
        for number in range(_LONG):
            ids: list[int] = []
            place = number
            while len(ids) < length:  # whole prompts, the first one cut at its beginning: each ends as a prompt does
                ids = [*(self.questions[place % len(self.questions)].ids or ()), *ids]
                place += _LONG
            found.append(Question(f"long-{number}", None, tuple(ids[-length:])))
        return found

    # -- one pass ----------------------------------------------------------------------------------------------

    def _pass(self, name: str, questions: Sequence[Question], at_once: int, salt: str, num_tokens: int = TOKENS) -> Pass:
        if self._lost is not None or name in self._failed:
            raise self._lost or self._failed[name]
        try:
            return self._asked(name, questions, at_once, salt, num_tokens)
        except ServerError as error:
            self._failed[name] = error
            self._lost = error if error.status is None else None  # it hangs, is gone or talks nonsense: each further question would too
            raise

    def _asked(self, name: str, questions: Sequence[Question], at_once: int, salt: str, num_tokens: int) -> Pass:
        before = self._scrape()
        with Progress(f"asking the server ({name})", len(questions), "prompt") as progress:

            def one(question: Question) -> Reply:
                reply = self._answer(question, num_tokens, f"{self.salt}-{salt}-{question.id}")
                progress.advance(1)
                return reply

            with ThreadPoolExecutor(at_once) as pool:
                replies = tuple(pool.map(one, questions))
        figures, hits = self._counted(name, before, replies)
        made = Pass(name, tuple(questions), replies, figures, hits)
        self.passes.append(made)
        return made

    def _answer(self, question: Question, num_tokens: int, salt: str) -> Reply:
        if question.ids is not None:
            return self.server.complete(question.ids, num_tokens, salt)
        assert question.chat is not None
        return self.server.chat(question.chat.messages, num_tokens, salt)

    def _counted(self, name: str, before: Counters | str, replies: Sequence[Reply]) -> tuple[ServerFigures | str, int]:
        """From the requests where they count for themselves, else from the server's counters before and after."""
        where = f"{len(replies)} prompts ({name})"
        told = sum(reply.num_cached_tokens or 0 for reply in replies)
        own = [reply.rounds for reply in replies if reply.rounds is not None]
        if own:
            figures = joined_figures(own)
            count = self.server.about.num_draft_tokens or figures.num_draft_tokens
            return replace(figures, where=where, num_draft_tokens=count), told
        if isinstance(before, str):
            return before, told
        if any(reply.tokens is None for reply in replies):
            return "the server gives no token ids, so its counters cannot be told from what others ask", told
        num_tokens = sum(len(reply.tokens or ()) for reply in replies)
        try:
            after = settled(self.scrape, before, num_tokens)
        except UserError as error:
            return f"the server's /metrics failed: {error.what}", told
        return between(before, after, num_tokens, where), max(told, int(after.cache_hits - before.cache_hits))

    def _scrape(self) -> Counters | str:
        try:
            return self.scrape()
        except UserError as error:
            return f"the server's /metrics cannot be read: {error.what}"

    def scrape(self) -> Counters:
        """Raises UserError if there is no /metrics or it is something else."""
        return counters_in(self.server.client.get_text("/metrics"), self.server.about.model)


def _mixed(items: Sequence[Item]) -> list[tuple[int, Item]]:
    """As many as are asked, numbered, in an order whose beginning is of every part of them, too."""
    chosen = list(enumerate(spread(items, _TOGETHER), 1))
    stride = max(1, len(chosen) // _ALONE)
    return [item for start in range(stride) for item in chosen[start::stride]]


def _opened(chat: Chat) -> Chat:
    """Up to its last user turn: what comes behind is the server's to say."""
    last = max((place for place, message in enumerate(chat.messages) if message["role"] == "user"), default=-1)
    return Chat(chat.id, tuple(chat.messages[: last + 1]), chat.domain, chat.extra)
