"""Replace the answers of chats by the target's own: a draft is trained on what its target says.

Turns are answered in order, so that a later answer follows the regenerated earlier ones. Every answer goes into a
journal at once; a restart goes on where the last run was killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.data.chats import Chat, without_content
from eyas.data.journal import Journal, journal_of
from eyas.data.render import chat_template_text
from eyas.errors import UserError
from eyas.files import sha256_text
from eyas.loops import find_loop
from eyas.progress import Progress
from eyas.targets.devices import dtype_name
from eyas.targets.generate import BatchSettings, Finished, check_room, generate_batch
from eyas.targets.target import Target


@dataclass(frozen=True)
class RegenerateReport:
    """`finish_reasons` counts answers by stop, length and loop; `skipped` names chats and the reason.

    `looping` counts answers that end in a loop, whether they were cut there or not.
    """

    answers: int
    answer_tokens: int
    looping: int
    finish_reasons: dict[str, int]
    skipped: dict[str, str]


def regenerate(
    target: Target, chats: Sequence[Chat], out: Path, settings: BatchSettings, max_prompt_tokens: int
) -> tuple[list[Chat], RegenerateReport]:
    """Return the chats with answers of the target's own; unanswerable chats are left out and named.

    A chat that ends in a user turn gets an answer added; assistant turns in between are replaced.
    """
    chat_template_text(target.tokenizer)  # says so in words if there is none
    longest = check_room(target, settings)
    job = {
        "target": target.name,
        "target_dtype": dtype_name(target.dtype),
        "tokenizer": target.tokenizer_hash,
        "chat_template": target.chat_template_hash,
        "chats": sha256_text(json.dumps([chat.to_json() for chat in chats])),
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_at_loop": settings.stop_at_loop,
        "seed": settings.seed,
        "max_prompt_tokens": max_prompt_tokens,
    }
    work = {chat.id: _Answering(chat) for chat in _with_own_ids(chats)}
    num_turns = max((item.num_turns for item in work.values()), default=0)
    total = sum(item.num_turns for item in work.values())
    with Journal(journal_of(out), job) as journal, Progress("answering", total, "answers") as progress:
        answers = {(entry["id"], entry["turn"]): entry for entry in journal.entries}
        progress.found(len(answers))
        for turn in range(num_turns):
            for item in work.values():
                if (entry := answers.get((item.chat.id, turn))) is not None:
                    item.add(entry)
            for finished in generate_batch(target, _prompts(target, work, turn, min(max_prompt_tokens, longest)), settings):
                entry = _entry(target, finished, turn)
                journal.append(entry)
                work[finished.key].add(entry)
                progress.advance(1)
    done = [item.finished() for item in work.values() if item.skipped is None]
    return done, _report(list(work.values()))


def _with_own_ids(chats: Sequence[Chat]) -> Sequence[Chat]:
    """Answers are kept by the chat's id. Raises UserError if two chats that differ share one."""
    seen: dict[str, Chat] = {}
    for chat in chats:
        first = seen.setdefault(chat.id, chat)
        if first.messages != chat.messages:
            raise UserError(
                "two different chats have the same id",
                got=f"{chat.id}: {first.place}, and {chat.place}" if chat.place else chat.id,
                remedy="give every chat an id of its own, or none",
            )
    return chats


class _Answering:
    """One chat on its way: the messages so far and the turns still to answer."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.entries: list[dict[str, Any]] = []
        self.skipped: str | None = None
        self._questions = _questions(chat)
        self.num_turns = len(self._questions)
        silent = [message["role"] for question in self._questions for message in question if without_content(message)]
        if self.num_turns == 0:
            self.skipped = "no user turn to answer"
        elif silent:
            self.skipped = f"a {silent[0]} message without content"

    def prompt(self, turn: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for number, question in enumerate(self._questions[: turn + 1]):
            messages += question
            if number < turn:
                messages.append({"role": "assistant", "content": self.entries[number]["text"]})
        return messages

    def add(self, entry: dict[str, Any]) -> None:
        assert len(self.entries) == entry["turn"]
        self.entries.append(entry)

    def waits_for(self, turn: int) -> bool:
        return self.skipped is None and len(self.entries) == turn < self.num_turns

    def finished(self) -> Chat:
        last = self.num_turns - 1
        messages = (*self.prompt(last), {"role": "assistant", "content": self.entries[last]["text"]})
        extra = {**self.chat.extra, "finish_reasons": [entry["reason"] for entry in self.entries]}
        return Chat(self.chat.id, messages, self.chat.domain, extra)


def _questions(chat: Chat) -> list[list[dict[str, Any]]]:
    """The chat cut at its assistant turns: what stands before each answer. An answer without a question is dropped."""
    questions: list[list[dict[str, Any]]] = []
    pending: list[dict[str, Any]] = []
    for message in chat.messages:
        if message["role"] != "assistant":
            pending.append(message)
        elif any(item["role"] == "user" for item in pending) or questions:
            if pending:
                questions.append(pending)
            pending = []
    if any(item["role"] == "user" for item in pending):
        questions.append(pending)
    return questions


def _prompts(target: Target, work: dict[str, _Answering], turn: int, max_prompt_tokens: int) -> Iterator[tuple[str, list[int]]]:
    for item in work.values():
        if not item.waits_for(turn):
            continue
        try:
            tools = item.chat.extra.get("tools")
            text = target.tokenizer.apply_chat_template(item.prompt(turn), tools=tools, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises whatever it likes; the chat is named with the reason
            item.skipped = f"the chat template refused it: {error}"
            continue
        ids = target.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > max_prompt_tokens:
            item.skipped = f"prompt of {len(ids)} tokens is longer than {max_prompt_tokens}"
            continue
        yield item.chat.id, ids


def _entry(target: Target, finished: Finished, turn: int) -> dict[str, Any]:
    tokens = finished.tokens
    if finished.reason == "loop" and (loop := find_loop(tokens)) is not None:
        tokens = tokens[: loop.start + loop.period]
    looping = find_loop(finished.tokens) is not None
    text = target.tokenizer.decode(tokens, skip_special_tokens=True)
    return {"id": finished.key, "turn": turn, "text": text, "reason": finished.reason, "num_tokens": len(tokens), "looping": looping}


def _report(work: list[_Answering]) -> RegenerateReport:
    entries = [entry for item in work for entry in item.entries]
    reasons = Counter(entry["reason"] for entry in entries)
    skipped = {item.chat.id: item.skipped for item in work if item.skipped is not None}
    looping = sum(entry.get("looping", entry["reason"] == "loop") for entry in entries)
    return RegenerateReport(len(entries), sum(entry["num_tokens"] for entry in entries), looping, dict(reasons), skipped)
