"""Numbers as people write them: 100M tokens, 8xH200, 50GB/s. Sizes are decimal: 1 GB is 10^9 bytes."""

from __future__ import annotations

import math
import re

from eyas.errors import UserError

_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def parse_count(text: str, option: str) -> int:
    """A positive whole number: 512000, 512_000, 512k, 1.5B. Raises UserError for anything else."""
    value = _parse(text, option, _COUNTS, "a number with nothing or K, M, B, T behind it: 100M, 1.5B, 51200000")
    if value < 1 or not math.isclose(value, round(value), rel_tol=1e-9):
        raise UserError(f"{option} must be a whole number of at least 1", got=text, allowed="100M, 1.5B, 51200000")
    return round(value)


def parse_rate(text: str, option: str) -> float:
    """Bytes a second: 5GB/s, 400MB/s. Raises UserError for anything else; bits (Gb/s) are refused, not guessed."""
    number = text.strip().removesuffix("/s")
    if number == text.strip():
        raise UserError(f"{option} is a rate and needs a unit", got=text, allowed="bytes a second: 5GB/s, 400MB/s")
    if re.search(r"[kKMGT]b(it)?$", number):
        raise UserError(f"{option} is in bytes, not bits", got=text, allowed="5GB/s, 400MB/s", remedy="divide by 8: 400Gb/s are 50GB/s")
    return _parse(number, option, _BYTES, "bytes a second: 5GB/s, 400MB/s")


def _parse(text: str, option: str, units: dict[str, float], allowed: str) -> float:
    found = re.fullmatch(r"([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if found is None:
        raise UserError(f"{option} is not a number that can be read", got=text, allowed=allowed)
    unit = found[2].upper()
    if unit not in units:
        raise UserError(f"{option} has an unknown unit", got=found[2], allowed=allowed)
    value = float(found[1].replace("_", "").replace(",", "")) * units[unit]
    if not 0 < value < 1e21:
        raise UserError(f"{option} must be positive, and a size that exists", got=text, allowed=allowed)
    return value


def size(count: float) -> str:
    """1.6 TB, 7.52 GB, 24 kB: three digits."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{_three_digits(count / scale)} {unit}"
    return f"{count:.0f} B"


def count(number: float) -> str:
    """671 B, 8.03 B, 135 M: parameters and tokens."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{_three_digits(number / scale)} {unit}"
    return f"{number:.0f}"


def hours(number: float) -> str:
    """12 min, 3.4 h, 6.1 days."""
    if number < 1.5:
        return f"{_three_digits(number * 60)} min"
    return f"{_three_digits(number)} h" if number < 72 else f"{_three_digits(number / 24)} days"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
