"""Names for hidden states: `embed`, `layer:K`, `boundary:B`, `final`.

Boundary b is the residual stream that enters decoder layer b. Boundary 0 is the embedding's output, boundary
N what leaves the last of N layers, before the final norm. `layer:K` is the OUTPUT of layer K, so boundary K+1.
`final` is the state after the final norm, which lm_head reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eyas.errors import UserError

_ALLOWED = "embed, layer:K (output of layer K), boundary:B (input of layer B), final (after the final norm)"


@dataclass(frozen=True)
class Tap:
    """One named hidden state. `boundary` is None for `final`."""

    boundary: int | None

    @property
    def is_final(self) -> bool:
        return self.boundary is None

    def __str__(self) -> str:
        if self.boundary is None:
            return "final"
        return "embed" if self.boundary == 0 else f"layer:{self.boundary - 1}"

    @staticmethod
    def parse(text: str) -> Tap:
        """Raises UserError for anything that is not a tap's name."""
        text = text.strip()
        if text == "embed":
            return Tap(0)
        if text == "final":
            return Tap(None)
        match = re.fullmatch(r"(layer|boundary):(\d{1,5})", text)
        if match is None:
            raise UserError("unknown tap", got=repr(text), allowed=_ALLOWED, remedy="write for example --taps embed,layer:2,layer:14")
        number = int(match[2])
        return Tap(number + 1 if match[1] == "layer" else number)

    def check(self, num_target_layers: int) -> None:
        """Raises UserError if a target of so many layers has no such state."""
        if self.boundary is not None and self.boundary > num_target_layers:
            raise UserError(
                f"tap {self} lies beyond the last layer",
                got=str(self),
                allowed=f"embed, layer:0 to layer:{num_target_layers - 1}, final (the target has {num_target_layers} layers)",
                remedy="layers are counted from 0, and layer:K is the output of layer K",
            )


def parse_taps(text: str) -> tuple[Tap, ...]:
    """Parse a comma-separated, ordered list; the order is the order of the draft's fc columns.

    Raises UserError for an empty list, a gap between commas (a slot was forgotten), an unknown name or a state named
    twice (`layer:1` and `boundary:2` are one).
    """
    if not text.strip():
        raise UserError("no taps given", got=repr(text), allowed=_ALLOWED)
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise UserError("a tap is missing between commas", got=repr(text), allowed=_ALLOWED, remedy="name every slot, without spare commas")
    taps = tuple(Tap.parse(part) for part in parts)
    for tap in taps:
        if taps.count(tap) > 1:
            raise UserError(
                f"tap {tap} is given twice",
                got=text,
                remedy="each slot of the draft must read another state; layer:K and boundary:K+1 are the same one",
            )
    return taps


def format_taps(taps: tuple[Tap, ...]) -> str:
    return ",".join(str(tap) for tap in taps)
