"""The one exception that a user is meant to see.

A `UserError` says what is wrong, what was got, what is allowed and what to do about it. The command
line prints it and exits with 2. Bugs of our own are `assert`s and ordinary exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# What a terminal would obey (all but the line's end), and marks that turn the direction of writing: names and files hold anything.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with control characters written as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_words(value: object) -> str:
    """Lists and mappings without Python's brackets and quotes; shapes and other lists of numbers keep their brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {in_words(part)}" for key, part in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
        if parts and all(isinstance(part, int | float) for part in parts):
            return str(parts)
        return ", ".join(str(part) if isinstance(part, list | tuple) else in_words(part) for part in parts) or "none"
    return str(value)


class UserError(Exception):
    """Something the user gave is wrong; nothing was half-written.

    Args:
        what: the problem, one sentence, naming the file or option.
        got: the value found, if there is one.
        allowed: what would have been accepted.
        remedy: the next step that mends it.
    """

    def __init__(self, what: str, *, got: object = None, allowed: object = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.got = got
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.got is not None:
            lines.append(f"  got:     {in_words(self.got)}")
        if self.allowed is not None:
            lines.append(f"  allowed: {in_words(self.allowed)}")
        if self.remedy is not None:
            lines.append(f"  remedy:  {self.remedy}")
        return printable("\n".join(lines))


class WiringError(UserError):
    """Two artefacts disagree on a field that must match; see `wiring.Wiring.diff`."""


class WeightsError(UserError):
    """Weights that are there and cannot be used: damaged, not finite, or other ones than their config asks for."""
