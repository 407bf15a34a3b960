"""The questions that a server is asked, once an examination: each pass is made when a test first needs it.

    alone      prompts one after another, each under a salt of its own: no prefix of it is in a cache
    again      the same ones once more: their prefixes are cached now, if they fill a block of the cache
    together   the same ones and more, all at once
    long       prompts of many chunks, all at once
    long again the same ones once more: their prefixes fill blocks of any size
    sampled    the ones of `together`, all at once, at temperature 1
    probes     from places inside of the answers, a few tokens on: the first is the prefill's, the second the first round's

Answers end where the target ends them, or after so many tokens.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from eyas.doctor.reading_files import Told, readings_of
from eyas.doctor.reading_files import together as joined_figures
from eyas.doctor.readings import Reading, read
from eyas.doctor.server.client import Client, ServerError
from eyas.doctor.server.counters import FELL_BACK, Counters, between, counters_in, fell_back, settled
from eyas.doctor.server.protocol import Reply, Server
from eyas.doctor.server.questions import ALONE, LONG, TOGETHER, TOKENS, Question, long_questions, short_questions
from eyas.doctor.server_figures import ServerFigures
from eyas.errors import UserError
from eyas.progress import Progress

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_PROBES, _PROBE_TOKENS = 5, 8  # of each answer; so long that a first round proposes all it can
_LEAST_SECONDS, _MOST_SECONDS = 120.0, 600.0  # for one answer
_PATIENCE = 80.0  # times the longest wait so far, within these: an answer has 64 times the greeting's tokens, a long prompt many chunks


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
        self.server = Server(Client(exam.exhibits.server), exam.notes, exam.exhibits.target)
        self.passes: list[Pass] = []
        self._lost: UserError | None = None
        self._failed: dict[str, UserError] = {}
        self._longest = 0.0
        self._last_seen: Counters | None = None
        self.fell_back = False
        self.salt = f"eyas-{secrets.token_hex(8)}"

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Raises UserError if there are none that can be asked."""
        return short_questions(self._exam, self.server, self.salt)

    # -- passes ------------------------------------------------------------------------------------------------

    @cached_property
    def alone(self) -> Pass:
        return self._pass("alone", self.questions[:ALONE], 1, "alone")

    @cached_property
    def again(self) -> Pass:
        """Raises UserError if the first pass could not be made."""
        questions = self.alone.questions
        return self._pass("again", questions, 1, "alone")

    @cached_property
    def together(self) -> Pass:
        questions = [*self.alone.questions, *self.questions[ALONE:TOGETHER]]
        return self._pass("together", questions, len(questions), "together")

    @cached_property
    def sampled(self) -> Pass:
        """What it counts meanwhile is of no greedy text, so it is no part of `passes`."""
        made = self._pass("sampled", self.questions[:TOGETHER], TOGETHER, "sampled", temperature=1.0)
        self.passes.remove(made)
        return made

    @cached_property
    def long(self) -> Pass:
        """Raises UserError if the server's or the target's positions leave no room for a long prompt."""
        questions = long_questions(self.questions, self.server, self._exam.loaded_target)
        return self._pass("long", questions, LONG, "long")

    @cached_property
    def long_again(self) -> Pass:
        """Raises UserError as `long` does."""
        return self._pass("long again", self.long.questions, LONG, "long")

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

    def open(self) -> None:
        """Read what it has counted so far, and ask for a first token. Raises ServerError if none comes."""
        _ = self._first_page
        begun = time.monotonic()
        self.server.greet()
        self._longest = time.monotonic() - begun

    @cached_property
    def num_draft_tokens(self) -> int | None:
        """K, by what the server says of itself or has a counter for; None if it does not show it."""
        try:
            counted = len(counters_in(self._first_page, self.server.about.model).positions)
        except UserError:
            counted = 0
        return self.server.about.num_draft_tokens or counted or None

    def readings(self, told: Told) -> list[Reading]:
        """The pass with the most rounds, if one was made and counted; and what the server has counted since its start."""
        counted = [made.figures for made in self.passes if not isinstance(made.figures, str) and made.figures.rounds]
        best = max(counted, key=lambda figures: figures.rounds or 0.0, default=None)
        return [*([] if best is None else [read(best)]), *self._since_start(told)]

    def _since_start(self, told: Told) -> tuple[Reading, ...]:
        told = replace(told, num_draft_tokens=self.num_draft_tokens or told.num_draft_tokens)
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

    # -- one pass ----------------------------------------------------------------------------------------------

    def _pass(
        self, name: str, questions: Sequence[Question], at_once: int, salt: str, num_tokens: int = TOKENS, temperature: float = 0.0
    ) -> Pass:
        if self._lost is not None or name in self._failed:
            raise self._lost or self._failed[name]
        try:
            return self._asked(name, questions, at_once, salt, num_tokens, temperature)
        except ServerError as error:
            self._failed[name] = error
            self._lost = error if error.status is None else None  # it hangs, is gone or talks nonsense: each further question would too
            raise

    def _asked(self, name: str, questions: Sequence[Question], at_once: int, salt: str, num_tokens: int, temperature: float) -> Pass:
        before, failed = self._scrape(), list[ServerError]()
        with Progress(f"asking the server ({name})", len(questions), "prompt") as progress:

            def one(question: Question) -> Reply:
                if failed:  # those behind a request that failed would each wait as long as it did
                    raise failed[0]
                try:
                    reply = self._answer(question, num_tokens, _salt(self.salt, salt, question.id), temperature)
                except ServerError as error:
                    failed.append(error)
                    raise
                progress.advance(1)
                return reply

            with ThreadPoolExecutor(at_once) as pool:
                replies = tuple(pool.map(one, questions))
        figures, hits = self._counted(name, before, replies)
        if self.fell_back:  # what it counts now may be of another draft, or of another server
            figures = FELL_BACK
        made = Pass(name, tuple(questions), replies, figures, hits)
        self.passes.append(made)
        return made

    def _answer(self, question: Question, num_tokens: int, salt: str, temperature: float) -> Reply:
        seconds, begun = min(_MOST_SECONDS, max(_LEAST_SECONDS, _PATIENCE * self._longest)), time.monotonic()
        if question.ids is not None:
            reply = self.server.complete(question.ids, num_tokens, salt, seconds, temperature)
        else:
            assert question.chat is not None
            reply = self.server.chat(question.chat.messages, num_tokens, salt, seconds)
        self._longest = max(self._longest, time.monotonic() - begun)
        return reply

    def _counted(self, name: str, before: Counters | str, replies: Sequence[Reply]) -> tuple[ServerFigures | str, int]:
        """From the requests where they count for themselves, else from the server's counters before and after."""
        where = f"{len(replies)} prompts ({name})"
        told = sum(reply.num_cached_tokens or 0 for reply in replies)
        own = [reply.rounds for reply in replies if reply.rounds is not None]
        if own:
            figures = joined_figures(own)
            count = self.server.about.num_draft_tokens or figures.num_draft_tokens
            return replace(figures, where=where, num_draft_tokens=count), max(told, self._hits_since(before))
        if self.server.about.speculates is False:
            return ServerFigures("sglang", where, rounds=0.0, proposed=0.0, accepted=0.0), told
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

    def _hits_since(self, before: Counters | str) -> int:
        after = self._scrape()
        return 0 if isinstance(before, str) or isinstance(after, str) else int(after.cache_hits - before.cache_hits)

    def _scrape(self) -> Counters | str:
        try:
            return self.scrape()
        except UserError as error:
            return f"the server's /metrics cannot be read: {error.what}"

    def scrape(self) -> Counters:
        """Raises UserError if there is no /metrics or it is something else."""
        now = counters_in(self.server.client.get_text("/metrics"), self.server.about.model)
        self.fell_back |= self._last_seen is not None and fell_back(self._last_seen, now)
        self._last_seen = now
        return now


def _salt(*parts: str) -> str:
    """Engines limit what a salt may hold, and an id of the user's chats may hold anything."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
