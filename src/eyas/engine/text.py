"""Token ids to text while they arrive: only whole characters are given out, and what was given out never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INCOMPLETE = "\ufffd"  # what decoders put for bytes that are no character (yet)


class TextStream:
    """The text of a growing token sequence, piece by piece; special tokens such as the end of a turn give none.

    A piece is decoded together with the tokens of the piece before it, since some tokenizers drop a space at the start
    of what they decode. Tokens whose bytes end inside a character are held back until it is whole.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._given: list[int] = []
        self._held: list[int] = []

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` complete."""
        self._held.extend(tokens)
        piece = self._piece()
        if piece.endswith(_INCOMPLETE) or not piece:
            return ""
        self._given, self._held = self._held, []
        return piece

    def flush(self) -> str:
        """What is still held back, at the end: bytes that never became a character show as U+FFFD."""
        piece = self._piece()
        self._given, self._held = [], []
        return piece

    def _piece(self) -> str:
        before = self._decode(self._given)
        return self._decode(self._given + self._held)[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
