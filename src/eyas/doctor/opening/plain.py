"""JSON objects that may be missing, damaged or of the wrong kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.files import JSON_ERRORS

_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Object:
    """`value` is empty where `problem` says why it could not be read; `there`: the file exists."""

    value: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    there: bool = False


def read_object(path: Path) -> Object:
    if not path.exists():
        return Object(problem=f"{path.name} is missing")
    try:
        if path.stat().st_size > _MAX_BYTES:
            return Object(problem=f"{path.name} is too large to be one ({path.stat().st_size} bytes)", there=True)
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return Object(problem=f"{path.name} cannot be read: {error.strerror}", there=True)
    except JSON_ERRORS as error:
        return Object(problem=f"{path.name} is no valid JSON: {error}", there=True)
    if not isinstance(value, dict):
        return Object(problem=f"{path.name} holds no JSON object but a {type(value).__name__}", there=True)
    return Object(value, there=True)


def whole(value: Any) -> int | None:
    """The value if it is a positive whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def number(value: Any) -> float | None:
    """The value if it is a finite number."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    return float(value) if real and value == value else None


def inside(value: Any, *keys: str) -> Any:
    """value[keys[0]][keys[1]]..., or None where a part is missing or no object."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
