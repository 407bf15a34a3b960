"""Chats on disk: JSON Lines in the messages shape or the ShareGPT shape, read into one value.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}

A line that is not JSON, or not of either shape, is the file's fault: UserError with the line number. What a chat says
(an odd role, an empty answer) is judged later, chat by chat, by `render`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.errors import UserError
from eyas.files import JSON_ERRORS, json_problem, sha256_text, write_text

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
_SHAPES = '{"messages": [{"role": ..., "content": ...}]} or {"conversations": [{"from": ..., "value": ...}]}'
_TAKE_APART = "one chat a line: jq -c '.[]' FILE > FILE.jsonl takes a list apart"


@dataclass(frozen=True)
class Chat:
    """`messages` are dicts with at least role and content, passed to the chat template as they are. `place`: file and line."""

    id: str
    messages: tuple[dict[str, Any], ...]
    domain: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        head = {"id": self.id, "domain": self.domain} if self.domain else {"id": self.id}
        return {**head, "messages": list(self.messages), **self.extra}


def read_chats(path: Path) -> Iterator[Chat]:
    """Yield the chats of a JSON Lines file in order; empty lines are passed over.

    Raises UserError: no such file, not UTF-8, a line that is not a chat (with its number), or no chat at all.
    """
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise UserError(f"chats file {problem}: {path}", allowed="a JSON Lines file of chats", remedy="check the path")
    found = False
    try:
        with open(path, encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    found = True
                    yield _parse(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text", got=str(error), remedy="save it as UTF-8, unpacked if it is an archive") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read", got=error.strerror, remedy="check the path and its permissions") from error
    if not found:
        raise UserError(f"{path} holds no chats", got="no line with anything on it", allowed=_SHAPES, remedy="write one chat a line")


def read_some(path: Path, count: int) -> tuple[list[Chat], int]:
    """At most `count` chats of a file, at equal distances, and how many it holds; of a large file only these are held.

    Raises UserError as `read_chats` does.
    """
    total = sum(1 for _ in read_chats(path))
    wanted = set(places(total, count))
    return [chat for place, chat in enumerate(read_chats(path)) if place in wanted], total


def places(total: int, count: int) -> list[int]:
    """The places of at most `count` of `total` items, at equal distances, so that a small part still holds every domain."""
    count = min(count, total)
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def without_content(message: Mapping[str, Any]) -> bool:
    """Whether a message says nothing at all: a template would make the word None of it, or refuse it."""
    return message.get("content") is None and not any(message.get(key) for key in ("tool_calls", "function_call", "reasoning_content"))


def write_chats(path: Path, chats: Iterable[Chat]) -> None:
    """One chat a line in the messages shape; the file appears whole or not at all."""
    write_text(path, "".join(json.dumps(chat.to_json(), ensure_ascii=False) + "\n" for chat in chats))


def _parse(line: str, where: str) -> Chat:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is valid JSON, and no text
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: not text", got=str(error), remedy="an escape of \\ud800 to \\udfff stands alone") from error
    except JSON_ERRORS as error:  # its own line number would be that within the line
        got = json_problem(error)
        if isinstance(error, json.JSONDecodeError):
            got = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        remedy = _TAKE_APART if line.startswith("[") else "one whole JSON object a line"
        raise UserError(f"{where}: not valid JSON", got=got, allowed=_SHAPES, remedy=remedy) from error
    if not isinstance(value, dict) or ("messages" in value) == ("conversations" in value):
        raise _no_chat(value, line, where)
    if "messages" in value:
        messages = _messages(value["messages"], where)
    else:
        messages = _sharegpt(value["conversations"], where)
    extra = {key: part for key, part in value.items() if key not in ("id", "domain", "messages", "conversations")}
    default_id = sha256_text(json.dumps(messages, sort_keys=True, ensure_ascii=False))[:16]
    return Chat(str(value.get("id", default_id)), messages, str(value.get("domain", "")), extra, where)


def _no_chat(value: Any, line: str, where: str) -> UserError:
    remedy, why = "mend this line, or take it out", ""
    if isinstance(value, list):
        why, remedy = ": a list", _TAKE_APART
    elif isinstance(value, dict):
        both = "messages" in value
        why = ": it has both messages and conversations" if both else ": it has neither messages nor conversations"
        remedy = "take one of the two out: which of them counts is not known" if both else remedy
    return UserError(f"{where}: not a chat{why}", got=line.strip()[:120], allowed=_SHAPES, remedy=remedy)


def _messages(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{where}: messages must be a list of objects", got=type(value).__name__, allowed=_SHAPES)
    for item in value:
        if not isinstance(item.get("role"), str) or not isinstance(item.get("content", ""), str | list | None):
            raise UserError(f"{where}: a message needs role (text) and content", got=str(item)[:120], allowed=_SHAPES)
    return tuple(value)


def _sharegpt(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{where}: conversations must be a list of objects", got=type(value).__name__, allowed=_SHAPES)
    messages = []
    for item in value:
        if not isinstance(item.get("from"), str) or not isinstance(item.get("value"), str):
            raise UserError(f"{where}: a turn needs from and value (text)", got=str(item)[:120], allowed=_SHAPES)
        messages.append({"role": _SHAREGPT_ROLES.get(item["from"], item["from"]), "content": item["value"]})
    return tuple(messages)
