"""Does the server turn a chat into the token ids that the target's own template gives?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, untestable

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": "Why is the sky blue?"},),
    ({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "  Two words, please. "}),
    ({"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is water wet?"}),
)


def rendering(exam: Examination) -> Outcome:
    asking, target = exam.asking, exam.loaded_target
    assert asking is not None
    if target is None or not target.tokenizer.chat_template:
        return untestable("the target has no chat template to compare with" if target is not None else exam.why_no_target)
    differ, asked = [], 0
    for chat in _CHATS:
        try:
            text = target.tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
        except Exception:  # a template may refuse a role
            continue
        own = [int(token) for token in target.tokenizer.encode(text, add_special_tokens=False)]
        reply = asking.server.chat(chat, 1, asking.salt)
        if reply.prompt_tokens is None and reply.num_prompt_tokens is None:
            return untestable("the server says neither the ids nor the number of a prompt's tokens")
        asked += 1
        words = _difference(own, reply.prompt_tokens, reply.num_prompt_tokens)
        if words is not None:
            differ.append((words, own, reply.prompt_tokens))
    if not asked:
        return untestable("the target's template renders none of the chats to compare")
    if not differ:
        return ruled_out(f"{asked} chats are rendered as by the target's own template")
    words, own, ids = differ[0]
    bos = target.tokenizer.bos_token_id
    doubled = ids is not None and bos is not None and list(ids[:2]) == [bos, bos] and own[:2] != [bos, bos]
    text = f"{len(differ)} of {asked} chats are rendered otherwise than by the target's template: {words}"
    remedy = "give the server the template that the draft was trained with (--chat-template), or train on texts in the server's"
    remedy = "drop the beginning-of-text token from the template, or keep the tokenizer from adding one" if doubled else remedy
    return confirmed(Fault("bos-doubled" if doubled else "template-differs", "server", (Evidence(text),), remedy, 0.6))


def _difference(own: Sequence[int], ids: Sequence[int] | None, count: int | None) -> str | None:
    if ids is None:
        return None if count == len(own) else f"{count} tokens instead of {len(own)}"
    if list(ids) == list(own):
        return None
    place = next((place for place, (left, right) in enumerate(zip(ids, own, strict=False)) if left != right), min(len(ids), len(own)))
    end = place + 4
    return f"{len(ids)} tokens, the target's {len(own)}; from token {place} {list(ids[place:end])} instead of {list(own[place:end])}"
