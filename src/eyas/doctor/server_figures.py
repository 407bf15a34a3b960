"""Figures of acceptance as a server gives them, before anything is made of them. See `readings` for what they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SGLANG_COUNTS_DRAFTS_SINCE = (0, 5, 11)

OddityKind = Literal["impossible", "other definition"]


@dataclass(frozen=True)
class Oddity:
    """A reported figure that cannot be true, or that means something else than its name says."""

    kind: OddityKind
    what: str
    got: str
    allowed: str


@dataclass(frozen=True)
class ServerFigures:
    """Figures as a server gave them; None and () where it gave none.

    `num_draft_tokens` is K. `position_counts`: accepted drafts by position. `position_rates`: the same over all rounds.
    `drafts_only`: whether `acceptance_rate` counts drafts alone; None if that depends on a version that is not known.
    """

    engine: str
    where: str
    num_draft_tokens: int | None = None
    rounds: float | None = None
    proposed: float | None = None
    accepted: float | None = None
    position_counts: tuple[float, ...] = ()
    position_rates: tuple[float, ...] = ()
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    drafts_only: bool | None = True
    length_has_prefill: bool = False

    @property
    def positions(self) -> int | None:
        return self.num_draft_tokens or max(len(self.position_counts), len(self.position_rates)) or None


def drafts_only_in(version: str | None) -> bool | None:
    """Whether SGLang's rate of this version counts drafts alone; None if the version is not known."""
    parts = (version or "").split(".post")[0].split("rc")[0].split(".")
    if not all(part.isdigit() for part in parts):
        return None
    return tuple(int(part) for part in parts) >= SGLANG_COUNTS_DRAFTS_SINCE


def length_from_rate(rate: float, num_draft_tokens: int, drafts_only: bool) -> float:
    """Acceptance length that a rate stands for. `drafts_only` False: SGLang's rate up to 0.5.10."""
    return 1 + rate * num_draft_tokens if drafts_only else rate * (num_draft_tokens + 1)
