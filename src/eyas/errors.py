"""The one exception that a user is meant to see.

A `UserError` says what is wrong, what was got, what is allowed and what to do about it. The command
line prints it and exits with 2. Bugs of our own are `assert`s and ordinary exceptions.
"""

from __future__ import annotations


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
            lines.append(f"  got:     {self.got}")
        if self.allowed is not None:
            lines.append(f"  allowed: {self.allowed}")
        if self.remedy is not None:
            lines.append(f"  remedy:  {self.remedy}")
        return "\n".join(lines)


class WiringError(UserError):
    """Two artefacts disagree on a field that must match; see `wiring.Wiring.diff`."""
