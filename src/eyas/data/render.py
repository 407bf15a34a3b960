"""A chat becomes token ids and a loss mask, by the target's own chat template.

The ids are those of the template's one full rendering, nothing added: what a server would feed the target. The mask
covers what the target itself writes, and nothing else:

    <|im_start|> user \\n Hi <|im_end|> \\n <|im_start|> assistant \\n Hel lo . <|im_end|> \\n
         .         .   .  .      .       .       .          .       .  X   X  X     X       .

that is each assistant message with the stop token that closes it; no headers, no newline behind the stop token. The
stop token of an answer that was cut off (`finish_reasons`, as eyas data regenerate writes them) was never the target's:
it is left out.
Where the template marks answers by {% generation %}, its marks are taken. Otherwise the answer begins where the
rendering of the turns before it, with the generation prompt, ends; if the template rewrites earlier turns (drops
thinking from the history, say), it begins behind the turn's header in the full text. Whatever cannot be told for
certain makes the chat a `SkippedChat` with a reason; no answer is guessed.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer, processors
from transformers.utils.chat_template_utils import render_jinja_template

from eyas.data.chats import Chat, without_content
from eyas.errors import UserError

_CUT_OFF = {"length", "loop", "max_tokens"}  # reasons for which an answer ends without the target having said so
_ROLES = {"system", "developer", "user", "assistant", "tool"}
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_EMPTY_THINKING = re.compile(r"\s*<think>\s*</think>\s*")


class SkippedChat(Exception):
    """This chat cannot be rendered faithfully; the text says why."""


@dataclass(frozen=True)
class Tokens:
    """One rendered chat: equally long ids and mask (1 where the target writes); `num_cut_off` answers had no end."""

    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    id: str
    num_cut_off: int = 0

    def packed(self) -> Tokens:
        """The same in five bytes a token, for keeping many: lists of Python's numbers take forty."""
        return replace(self, token_ids=array("i", self.token_ids), loss_mask=array("b", self.loss_mask))


@dataclass(frozen=True)
class _Answer:
    """Character range of what the target writes in one turn; the closing stop token is sought in [content_end, limit).

    `is_cut_off`: the target was stopped at content_end, and what stands behind it is the template's.
    """

    start: int
    content_end: int
    limit: int
    is_cut_off: bool = False


class ChatRenderer:
    """Renders chats for one target.

    Args:
        stop_ids: the target's end-of-turn ids; the first one behind an answer's text closes it.
        max_length: ids beyond this many are cut off.

    Raises UserError if the tokenizer has no chat template or cannot say where in the text a token lies.
    """

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int], max_length: int) -> None:
        self.tokenizer, self.stop_ids, self.max_length = tokenizer, frozenset(stop_ids), max_length
        self.template = chat_template_text(tokenizer)
        if not tokenizer.is_fast:
            raise UserError(
                "this tokenizer does not say where its tokens lie in the text, so answers cannot be marked",
                got=type(tokenizer).__name__,
                allowed="a tokenizer with a tokenizer.json",
            )
        # With its own post-processor the backend may cut spaces out of the offsets; the ids do not depend on it here.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.post_processor = processors.ByteLevel(trim_offsets=False)
        self._backend.no_padding()
        self._backend.no_truncation()
        added = tokenizer.get_added_vocab()
        stops = [text for text in tokenizer.convert_ids_to_tokens(sorted(self.stop_ids)) if text in added]
        self._stop = _one_of(stops)
        self._special = _one_of([*stops, *(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)])
        self._has_tags = _GENERATION_TAG.search(self.template) is not None

    def render(self, chat: Chat) -> Tokens:
        """Raises SkippedChat with the reason if the chat has no faithful rendering or nothing in it is supervised."""
        messages, tools = list(chat.messages), chat.extra.get("tools")
        self._check(messages)
        full = self._text(messages, tools)
        if self._has_tags:
            answers = self._by_tags(full, messages, tools)
        else:
            answers = self._by_prefix(full, messages, tools) or self._by_header(full, messages, tools)
        answers = _with_ends(answers, chat.extra.get("finish_reasons"))
        token_ids, loss_mask = self._mask(full, answers)
        if not any(loss_mask):
            raise SkippedChat("no answer to learn from")
        if not any(loss_mask[: self.max_length]):
            raise SkippedChat(f"the first answer begins beyond {self.max_length} tokens")
        num_cut_off = sum(answer.is_cut_off for answer in answers)
        return Tokens(token_ids[: self.max_length], loss_mask[: self.max_length], chat.id, num_cut_off)

    # -- what is refused beforehand ------------------------------------------------------------------------------

    def _check(self, messages: list[dict[str, Any]]) -> None:
        if not any(message["role"] == "assistant" for message in messages):
            raise SkippedChat("no answer to learn from")
        for message in messages:
            role = message["role"]
            if role not in _ROLES and not re.search(rf"['\"]{re.escape(role)}['\"]", self.template):
                raise SkippedChat(f"unknown role {role!r}")
            if without_content(message):
                raise SkippedChat(f"a {role} message without content")
            if message.get("tool_calls") and "tool_calls" not in self.template:
                raise SkippedChat("the chat template does not render tool calls")
            for text in _strings(message):
                if (found := self._special.search(text)) is not None:
                    raise SkippedChat(f"special token {found[0]} inside the text of a {role} message")

    def _text(self, messages: list[dict[str, Any]], tools: Any, *, prompt: bool = False) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt))
        except Exception as error:  # a template raises whatever it likes
            raise SkippedChat(f"the chat template refused it: {_first_line(error)}") from error

    # -- where the answers are, in characters of the full text -----------------------------------------------------

    def _by_tags(self, full: str, messages: list[dict[str, Any]], tools: Any) -> list[_Answer]:
        """What the template marks, ended by the stop token inside or right behind the mark."""
        stated = [{key: value for key, value in message.items() if value is not None} for message in messages]
        rendered, spans = render_jinja_template(
            conversations=[stated],
            tools=tools,
            chat_template=self.template,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        assert rendered[0] == full, "marking the answers changed the text"
        answers = []
        for start, end in spans[0]:
            text_end = start + len(full[start:end].rstrip())
            stop = next((found for found in self._stop.finditer(full, start, text_end) if found.end() == text_end), None)
            stop = stop or self._stop.match(full, end)
            answers.append(_Answer(start, stop.start(), stop.end()) if stop else _Answer(start, end, end))
        return answers

    def _by_prefix(self, full: str, messages: list[dict[str, Any]], tools: Any) -> list[_Answer] | None:
        """Each answer begins where the prompt before it ends; None if the template does not grow by appending."""
        answers = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                before = self._text(messages[:number], tools, prompt=True)
                with_answer = self._text(messages[: number + 1], tools)
            except SkippedChat:
                return None
            if not with_answer.startswith(before) or not full.startswith(with_answer):
                return None
            answers.append(_answer(full, len(before), len(with_answer), message))
        return answers

    def _by_header(self, full: str, messages: list[dict[str, Any]], tools: Any) -> list[_Answer]:
        """Each answer begins behind its header, if the full text has exactly one header for each answer."""
        assistants = [message for message in messages if message["role"] == "assistant"]
        with_prompt = self._text(messages, tools, prompt=True)
        prompt = with_prompt[len(full) :] if with_prompt.startswith(full) else ""
        for header in (prompt, prompt.split("<think>")[0]):  # some prompts open the thinking that the history drops
            starts = [match.end() for match in re.finditer(re.escape(header), full)] if header.strip() else []
            if len(starts) == len(assistants):
                limits = [start - len(header) for start in starts[1:]] + [len(full)]
                return [self._before_next_turn(full, _answer(full, *span)) for span in zip(starts, limits, assistants, strict=True)]
        raise SkippedChat("the chat template rewrites earlier turns in a way that cannot be followed")

    def _before_next_turn(self, full: str, answer: _Answer) -> _Answer:
        """`limit` may lie behind a user's turn: only the first special token behind the answer's words can close it."""
        first = self._special.search(full, answer.content_end, answer.limit)
        closes = first is not None and self._stop.fullmatch(first[0]) is not None
        return _Answer(answer.start, answer.content_end, first.end() if first is not None and closes else answer.content_end)

    # -- from characters to tokens ---------------------------------------------------------------------------------

    def _mask(self, full: str, answers: list[_Answer]) -> tuple[list[int], list[bool]]:
        encoded = self._backend.encode(full, add_special_tokens=False)
        token_ids, offsets = encoded.ids, encoded.offsets
        loss_mask = [False] * len(token_ids)
        for answer in answers:
            inside = [at for at, (start, stop) in enumerate(offsets) if answer.start <= start and stop <= answer.limit]
            closing = next((at for at in inside if token_ids[at] in self.stop_ids and offsets[at][0] >= answer.content_end), None)
            if answer.is_cut_off:
                closing = None
            for at in inside:
                if at == closing or offsets[at][1] <= (answer.content_end if closing is None else offsets[closing][0]):
                    loss_mask[at] = True
        return token_ids, loss_mask


def chat_template_text(tokenizer: Any) -> str:
    """Raises UserError if there is none."""
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise UserError(
            "the target has no chat template, so chats cannot be rendered",
            got=_first_line(error) if tokenizer.chat_template else None,
            remedy="use an instruct model, or put a chat_template.jinja into the target's folder",
        ) from error


def _answer(full: str, start: int, limit: int, message: dict[str, Any]) -> _Answer:
    """The answer's text is what the template made of `message` in full[start:limit]."""
    content = _content(message)
    blank = _EMPTY_THINKING.match(full, start, limit)
    if blank is not None and "<think>" not in content and not message.get("reasoning_content"):
        start = blank.end()  # put there by the template, not said by anyone
    said = content.rsplit("</think>", 1)[-1].strip()
    at = full.find(said, start, limit)
    if at < 0:
        raise SkippedChat("the chat template changes the words of an answer")
    return _Answer(start, at + len(said), limit)


def _with_ends(answers: list[_Answer], reasons: Any) -> list[_Answer]:
    """Marks the answers that were cut off. Raises SkippedChat for reasons that cannot be theirs; None says nothing of any."""
    if reasons is None:
        return answers
    if not isinstance(reasons, list) or len(reasons) != len(answers):
        raise SkippedChat(f"finish_reasons does not say how each of its {len(answers)} answers ended")
    return [replace(answer, is_cut_off=reason in _CUT_OFF) for answer, reason in zip(answers, map(str, reasons), strict=True)]


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))


def _strings(value: Any) -> Iterator[str]:
    """Every text in a message, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield str(key)
            yield from _strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def _one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the texts, the longest first; matches nothing if there are none."""
    return re.compile("|".join(re.escape(text) for text in sorted(set(texts), key=len, reverse=True)) or r"(?!)")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
