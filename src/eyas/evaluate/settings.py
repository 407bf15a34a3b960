"""What is evaluated, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.draft.model import Eagle3Draft
from eyas.engine.request import MAX_DRAFT_TOKENS
from eyas.errors import UserError
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target
from eyas.wiring import Wiring


@dataclass(frozen=True)
class Pair:
    """A draft on its target. `taps` are the states it is fed: its own, or others on purpose."""

    target: Target
    draft: Eagle3Draft
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class EvaluateSettings:
    """Everything is greedy.

    Args:
        num_draft_tokens: K, proposals a round.
        batch: texts decoded or captured at once; no figure but the speed of the evaluation depends on it.
        measure: also decode speculatively; without it acceptance is only predicted.
        speed_prompts: prompts on which plain and speculative decoding are timed, one request at a time.
    """

    num_draft_tokens: int = 3
    max_new_tokens: int = 192
    batch: int = 16
    measure: bool = True
    speed_prompts: int = 5

    def __post_init__(self) -> None:
        limits = {"num_draft_tokens": 1, "max_new_tokens": 2, "batch": 1, "speed_prompts": 1}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is too small", got=getattr(self, name), allowed=f"{least} or more")
        if self.num_draft_tokens > MAX_DRAFT_TOKENS:
            raise UserError("num_draft_tokens is too large", got=self.num_draft_tokens, allowed=f"1 to {MAX_DRAFT_TOKENS}")


def fed_taps(wiring: Wiring, num_target_layers: int, as_if: tuple[Tap, ...] | None) -> tuple[Tap, ...]:
    """The taps that the draft is fed. Raises UserError for as-if taps that the target lacks or that do not fit fc."""
    if as_if is None:
        return wiring.taps
    for tap in as_if:
        tap.check(num_target_layers)
    if len(as_if) != len(wiring.taps):
        raise UserError(
            "--as-if must name as many states as the draft reads",
            got=format_taps(as_if),
            allowed=f"{len(wiring.taps)} taps; the draft was trained on {format_taps(wiring.taps)}",
        )
    return as_if
