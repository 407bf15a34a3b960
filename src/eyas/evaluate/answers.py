"""The target's own greedy answers to held-out prompts: the text that a draft is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from eyas.data.chats import Chat, places, without_content
from eyas.data.render import chat_template_text
from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.errors import UserError
from eyas.loops import find_loop
from eyas.progress import Progress
from eyas.targets.target import Target

Item = TypeVar("Item")


@dataclass(frozen=True)
class Prompt:
    """A rendered chat up to and with its last user turn, opened for the answer."""

    id: str
    domain: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """`tokens` end with the stop token if there was one. `loops`: it ends by repeating itself (`eyas.loops`)."""

    prompt: Prompt
    tokens: tuple[int, ...]
    finish_reason: str
    loops: bool

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt.token_ids, *self.tokens]


def render_prompts(target: Target, chats: Sequence[Chat], max_new_tokens: int) -> tuple[list[Prompt], list[str]]:
    """Prompts of `chats` and, in words, those left out with the reason.

    What comes after a chat's last user turn, its answer above all, is not read: the target answers anew.

    Raises UserError if no chat gives a prompt, or if the target has no chat template.
    """
    chat_template_text(target.tokenizer)
    room = target.max_positions - max_new_tokens
    prompts, skipped = [], []
    for chat in chats:
        last_user = max((number for number, message in enumerate(chat.messages) if message["role"] == "user"), default=None)
        if last_user is None:
            skipped.append(f"chat {chat.id}: no user turn")
            continue
        messages, tools = list(chat.messages[: last_user + 1]), chat.extra.get("tools")
        silent = next((message["role"] for message in messages if without_content(message)), None)
        if silent is not None:
            skipped.append(f"chat {chat.id}: a {silent} message without content")
            continue
        try:
            text = target.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises whatever it likes
            skipped.append(f"chat {chat.id}: the chat template refused it: {error}")
            continue
        ids = target.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > room:
            skipped.append(f"chat {chat.id}: its prompt of {len(ids)} tokens leaves no room for {max_new_tokens} more")
            continue
        prompts.append(Prompt(chat.id, chat.domain, tuple(ids)))
    if not prompts:
        raise UserError("no chat gives a prompt", got="; ".join(skipped[:3]), allowed="chats with a user turn")
    return prompts, skipped


def greedy_answers(target: Target, prompts: Sequence[Prompt], max_new_tokens: int, batch: int) -> list[Answer]:
    """One greedy answer a prompt, by plain decoding."""
    engine = Engine(target, max_batch=min(batch, len(prompts)), max_length=max_length(prompts, max_new_tokens))
    with engine, Progress("the target's own answers", len(prompts), "answers") as progress:
        asked = [prompt.token_ids for prompt in prompts]
        outputs = engine.generate(asked, SamplingParams(max_new_tokens=max_new_tokens), progress.advance)
    return [_answer(prompt, output, target.stop_ids) for prompt, output in zip(prompts, outputs, strict=True)]


def max_length(prompts: Sequence[Prompt], max_new_tokens: int) -> int:
    """Room for the longest of `prompts` and its answer."""
    return max(len(prompt.token_ids) for prompt in prompts) + max_new_tokens


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of the items, at equal distances."""
    return [items[place] for place in places(len(items), count)]


def _answer(prompt: Prompt, output: Output, stop_ids: tuple[int, ...]) -> Answer:
    spoken = output.tokens[:-1] if output.tokens[-1] in stop_ids else output.tokens
    return Answer(prompt, output.tokens, output.finish_reason, find_loop(spoken) is not None)
