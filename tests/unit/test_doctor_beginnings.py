"""Texts without the system prompt that the served template adds."""

from __future__ import annotations

from typing import Any

import torch

from eyas.doctor.replay.beginnings import check_beginnings
from eyas.doctor.replay.samples import RawSample


class Letters:
    """A tokenizer of single letters; `added` is what its template writes before a chat without a system prompt."""

    bos_token_id, bos_token = None, None

    def __init__(self, added: str) -> None:
        self.added = added

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        begin = "" if messages[0]["role"] == "system" else self.added
        return begin + "".join(f"<{message['role']}>{message['content']}</>" for message in messages)


def sample(text: str) -> RawSample:
    ids = torch.tensor([ord(letter) for letter in text])
    return RawSample("s", ids, torch.ones_like(ids, dtype=torch.bool), ids[:, None].float(), None, None, None)


ADDED = "<system>You are a helpful assistant with a name.</>"


def test_texts_without_the_prompt_are_told():
    texts = [sample("<user>how much is it?</>")] * 5 + [sample("<system>Be brief.</><user>how much?</>")] * 5
    found = check_beginnings(Letters(ADDED), texts, "render again")
    assert found is not None
    assert found.faults[0].code == "template-differs"


def test_texts_with_it_or_with_one_of_their_own_are_right():
    good = [sample(f"{ADDED}<user>how much is it?</>"), *[sample("<system>Be brief.</><user>how much?</>")] * 6]
    assert check_beginnings(Letters(ADDED), good, "render again") is None


def test_a_template_that_adds_nothing_is_satisfied():
    assert check_beginnings(Letters(""), [sample("<user>how much?</>"), sample("<system>Be brief.</><user>how?</>")], "x") is None
