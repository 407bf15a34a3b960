"""Tokenizers whose files leave out half of what they do.

A tiktoken file, which Kimi ships in place of a tokenizer.json, lists tokens and their ranks. Where a text is cut before
tokens are merged is written in Python beside it. transformers can turn the file into a tokenizer without that code, but
cuts by a pattern of its own then, so that some texts get other ids than the target was trained on, without a word.
"""

from __future__ import annotations

import re
from pathlib import Path

from transformers.utils import cached_file

from eyas.errors import UserError

_RANK_FILES = ("tiktoken.model", "tokenizer.model")  # the latter name is mostly SentencePiece's, sometimes tiktoken's
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


def require_whole_tokenizer(target: str) -> None:
    """Raises UserError for a folder or hub id whose tokenizer is known to its own code only."""
    if _file(target, "tokenizer.json") is not None:
        return
    ranks = next((path for name in _RANK_FILES if (path := _file(target, name)) is not None and _holds_ranks(path)), None)
    if ranks is not None:
        raise UserError(
            f"the target's tokenizer is a tiktoken file, which does not say where texts are cut: {target}",
            got=f"{ranks.name} and no tokenizer.json",
            allowed="tokenizer.json, or leave to run the code that comes with the target",
            remedy="put a tokenizer.json made with the model's own pattern beside it; or read that code, install tiktoken, "
            "and give --trust-remote-code",
        )


def _file(target: str, name: str) -> Path | None:
    """Where the file lies, fetched if the target is on a hub; None if there is none, or nobody to ask."""
    found = cached_file(
        target,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def _holds_ranks(path: Path) -> bool:
    """A line of base64, a blank and a number first: SentencePiece's models are binary."""
    with open(path, "rb") as stream:
        return _RANK_LINE.fullmatch(stream.readline(1 << 16)) is not None
