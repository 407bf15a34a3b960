"""How texts begin, beside what the served template writes before a first turn: a system prompt that it adds may be missing from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed

if TYPE_CHECKING:
    from eyas.doctor.replay.samples import RawSample

_MARK = "EYASMARK"
_ENOUGH = 32  # characters of a beginning: behind them a date may stand, which is another every day
_MOST, _FEWEST = 0.9, 4  # of the texts without a system prompt of their own


def check_beginnings(tokenizer: Any, samples: Sequence[RawSample], remedy: str) -> Outcome | None:
    """A fault if of the texts without a system prompt of their own nearly all begin otherwise than such a chat does.

    None if they do not, or if the template does not show how chats begin.
    """
    plain, with_system = _before_content(tokenizer, "user"), _before_content(tokenizer, "system")
    if not plain or not with_system:  # a template that knows no system prompt adds none
        return None
    texts = [_text(tokenizer, sample, max(len(plain), len(with_system))) for sample in samples]
    right = sum(_begins(text, plain) for text in texts)
    other = [text for text in texts if not _begins(text, plain) and not _begins(text, with_system)]
    if len(other) < _FEWEST or len(other) <= _MOST * (len(other) + right):
        return None
    words = f"{len(other)} of {len(samples)} texts begin with {_short(other[0])}; the served template begins a chat with {_short(plain)}"
    return confirmed(Fault("template-differs", "dump", (Evidence(f"{words}, or with a system prompt of its own"),), remedy, 0.75))


def _before_content(tokenizer: Any, role: str) -> str | None:
    messages = [{"role": role, "content": _MARK}]
    messages += [{"role": "user", "content": "a"}] if role != "user" else []
    try:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:  # a template raises whatever it likes
        return None
    start, found, _ = str(rendered).partition(_MARK)
    bos = tokenizer.bos_token
    return start.removeprefix(bos) if found and bos else start if found else None


def _text(tokenizer: Any, sample: RawSample, length: int) -> str:
    ids = sample.token_ids[: length + 8].tolist()
    if tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]:
        ids = ids[1:]  # whether it is there, and how often, is asked elsewhere
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _begins(text: str, served: str) -> bool:
    wanted = served.strip()[:_ENOUGH]
    return text.strip().startswith(wanted)


def _short(text: str) -> str:
    return repr(text[:48])
