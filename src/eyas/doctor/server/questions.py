"""What a server is asked: prompts of the user's own or held-out ones, as token ids wherever those can be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eyas.data.chats import Chat, read_some
from eyas.doctor.server.protocol import Server
from eyas.errors import UserError
from eyas.evaluate.answers import Prompt, render_prompts, spread

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.targets.target import Target

Item = TypeVar("Item")
TOKENS = 64  # of an answer, at most
ALONE, TOGETHER, LONG = 8, 24, 3
_CHATS = 400  # of a file with more, some from everywhere are looked at
_LONGEST = 3000  # tokens of a long prompt: more than one chunk of every default, and cheap enough to compute here
_HELD_OUT = Path(__file__).parents[2] / "data" / "prompts" / "heldout.jsonl"


@dataclass(frozen=True)
class Question:
    """`id` is like no other's. `ids` is None where there is no tokenizer to make them: then the chat goes as it is."""

    id: str
    chat: Chat | None
    ids: tuple[int, ...] | None


def short_questions(exam: Examination, server: Server, salt: str) -> tuple[Question, ...]:
    """The user's own prompts where --data was given, no two alike. Raises UserError if there are none that can be asked."""
    target = exam.loaded_target
    if target is None:
        chats = [_opened(chat) for chat in read_some(_data(exam, folder_allowed=False), _CHATS)[0]]
        unlike_chats = list({repr(chat.messages): chat for chat in chats if chat.messages}.values())
        if not unlike_chats:
            raise UserError("--data has no chat with a user turn", remedy="give chats as JSON Lines")
        return tuple(_with_ids(server, salt, [Question(f"{number}/{chat.id}", chat, None) for number, chat in _mixed(unlike_chats)]))
    unlike = list({prompt.token_ids: prompt for prompt in _prompts(exam, server, target)}.values())
    return tuple(Question(f"{number}/{prompt.id}", None, prompt.token_ids) for number, prompt in _mixed(unlike))


def long_questions(short: Sequence[Question], server: Server, target: Target | None) -> list[Question]:
    """Raises UserError if there are no ids, or if the server's or the target's positions leave no room for a long prompt."""
    if any(question.ids is None for question in short):
        raise UserError("without token ids no long prompt can be made", remedy="give --target")
    limits = [
        server.about.max_length or _LONGEST,
        target.max_positions if target else _LONGEST,
    ]
    length = min(_LONGEST, *limits) - TOKENS - 32
    if length < 2 * max(len(question.ids or ()) for question in short):
        raise UserError(f"{min(limits)} positions leave no room for a prompt longer than those asked before")
    found = []
    for number in range(LONG):
        ids: list[int] = []
        place = number
        while len(ids) < length:  # whole prompts, the first one cut at its beginning: each ends as a prompt does
            ids = [*(short[place % len(short)].ids or ()), *ids]
            place += LONG
        found.append(Question(f"long-{number}", None, tuple(ids[-length:])))
    return found


def _prompts(exam: Examination, server: Server, target: Target) -> list[Prompt]:
    data = _data(exam, folder_allowed=True)
    if data.is_dir():
        from eyas.capture.corpus import read_corpus

        texts = read_corpus(data, str(exam.exhibits.target), exam.exhibits.trust_remote_code).texts
        starts = ((text, next((place for place, own in enumerate(text.loss_mask) if own), 0)) for text in texts)
        found = [Prompt(text.id, "", tuple(text.token_ids[:start])) for text, start in starts if start > 1]
    else:
        found = render_prompts(target, read_some(data, _CHATS)[0], TOKENS)[0]
    room = (server.about.max_length or 1 << 30) - TOKENS - 32
    fitting = [prompt for prompt in found if len(prompt.token_ids) <= room]
    if not fitting:
        raise UserError(f"no prompt fits into the server's {server.about.max_length} positions", remedy="give shorter ones by --data")
    return fitting


def _data(exam: Examination, folder_allowed: bool) -> Path:
    data = exam.exhibits.data or _HELD_OUT
    if data.is_dir() and not folder_allowed:
        raise UserError("--data is a prepared folder, which holds token ids", remedy="give --target as well, or the chats themselves")
    return data


def _with_ids(server: Server, salt: str, questions: Sequence[Question]) -> list[Question]:
    """The server's own rendering of each chat, where it gives that: from then on the ids can be asked."""
    first = questions[0]
    assert first.chat is not None
    if server.chat(first.chat.messages, 1, salt).prompt_tokens is None:
        return list(questions)
    found = []
    for question in questions:
        assert question.chat is not None
        found.append(Question(question.id, question.chat, server.chat(question.chat.messages, 1, salt).prompt_tokens))
    return found


def _mixed(items: Sequence[Item]) -> list[tuple[int, Item]]:
    """As many as are asked, numbered, in an order whose beginning is of every part of them, too."""
    chosen = list(enumerate(spread(items, TOGETHER), 1))
    stride = max(1, len(chosen) // ALONE)
    return [item for start in range(stride) for item in chosen[start::stride]]


def _opened(chat: Chat) -> Chat:
    """Up to its last user turn: what comes behind is the server's to say."""
    last = max((place for place, message in enumerate(chat.messages) if message["role"] == "user"), default=-1)
    return Chat(chat.id, tuple(chat.messages[: last + 1]), chat.domain, chat.extra)
