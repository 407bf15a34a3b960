"""What a dump takes: bytes a token in every format that Eyas writes or reads.

    (n + 1)·H·b + s      n taps and the state that labels come from, b bytes a number, s bytes of ids, masks and the like

`n + 1`: every format but Automodel's keeps that state; Automodel keeps probabilities over the draft vocabulary instead.
The golden dumps of the tests have the same keys and dtypes as those projects write; headers, some bytes a text, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.plan.shape import Shape

OWN = "eyas"


@dataclass(frozen=True)
class DumpRow:
    """`stored`: in words, what a token leaves."""

    format: str
    dtype: str
    stored: str
    bytes_per_token: float


@dataclass(frozen=True)
class _Format:
    """`aside`: what a token leaves beside its states, and how many bytes that is."""

    name: str
    dtype: str
    number_bytes: int
    aside: str
    aside_bytes: int


_FORMATS = (
    _Format(OWN, "bf16", 2, "ids i32, mask, the target's token", 9),
    _Format(OWN, "fp32", 4, "ids i32, mask, the target's token", 9),
    _Format("speculators", "bf16", 2, "ids i64", 8),
    _Format("speculators", "fp8", 1, "ids i64, a scale f32", 12),
    _Format("speculators-pt", "bf16", 2, "ids and mask i64", 16),
    _Format("specforge", "bf16", 2, "ids and mask i64", 16),
    _Format("modelopt", "bf16", 2, "ids and mask i64", 16),
    _Format("vllm", "bf16", 2, "ids i64", 8),
)


def state_bytes(shape: Shape, num_taps: int, number_bytes: int = 2) -> int:
    """Of one token: its taps and the state that labels come from. This is also what goes over the network online."""
    return (num_taps + 1) * shape.hidden_size * number_bytes


def dump_rows(shape: Shape, num_taps: int, draft_vocab_size: int) -> list[DumpRow]:
    """Eyas's own first."""
    rows = [
        DumpRow(
            item.name,
            item.dtype,
            f"{num_taps + 1} states, {item.aside}",
            state_bytes(shape, num_taps, item.number_bytes) + item.aside_bytes,
        )
        for item in _FORMATS
    ]
    automodel = num_taps * shape.hidden_size * 2 + draft_vocab_size * 4 + 3 * 8 + 1
    words = f"{num_taps} states, {draft_vocab_size:,} probabilities fp32 (top-k keeps fewer), ids and masks i64; padding too"
    return [*rows, DumpRow("automodel", "bf16", words, automodel)]
