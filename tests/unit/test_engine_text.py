"""Text comes out in whole characters, and all of it."""

from __future__ import annotations

import pytest

from eyas.engine.text import TextStream
from eyas.targets.tiny import tiny_tokenizer

TEXTS = ["Tell me two things about the fox.", "naïve café – 日本語, emoji 🦅🪶 and 👩‍🚀!", "  spaces  kept \n\n\ttabs", "🦅", "word ."]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pieces_are_whole_characters_and_make_the_text(tokenizer, text, size):
    tokens = tokenizer.encode(text)
    assert len(tokens) > 1
    stream = TextStream(tokenizer)
    pieces = [stream.feed(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text
    assert stream.flush() == ""


def test_half_a_character_is_shown_only_at_the_end(tokenizer):
    tokens = tokenizer.encode("a🦅")[:-1]
    stream = TextStream(tokenizer)
    assert "".join(stream.feed([token]) for token in tokens) == "a"
    assert stream.flush() == "\ufffd"


def test_special_tokens_give_no_text(tokenizer):
    stream = TextStream(tokenizer)
    tokens = [*tokenizer.encode("yes"), tokenizer.eos_token_id]
    assert "".join(stream.feed([token]) for token in tokens) + stream.flush() == "yes"
