"""What a run was given, by hash; and which questions need not be asked again because nothing that they read has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from eyas.doctor.checks import all_hypotheses
from eyas.doctor.exhibits import Exhibits
from eyas.doctor.hypothesis import Hypothesis

_WHOLE = 64 << 20  # bytes up to which a file is hashed whole
_EDGE = 1 << 20
_REPLAY = ("target", "draft", "dump", "data")
_READS = {
    "layers": ("target",),
    "replay": _REPLAY,
    "samples": ("dump",),
    "readings": ("server", "metrics", "log"),
    "figures": ("metrics", "log"),
}
_ADDRESS = "address "


def fingerprints(exhibits: Exhibits) -> dict[str, str]:
    """A hash for everything that was given, an address for what runs.

    Of a file above 64 MB the hash covers the size, and a megabyte at each end.
    """
    found = {}
    for name in exhibits.given():
        value = getattr(exhibits, name)
        if name == "server" or (name == "metrics" and isinstance(value, str)):
            found[name] = f"{_ADDRESS}{value}"
            continue
        path = Path(str(value))
        found[name] = _of_path(path) if path.exists() else f"name {value}"
    return found


def running(inputs: Mapping[str, str]) -> list[str]:
    """Names whose exhibits are running servers: what they are now shows only when they are asked again."""
    return sorted(name for name, value in inputs.items() if value.startswith(_ADDRESS))


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names whose exhibits differ, came or went."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def unchanged_codes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Codes none of whose hypotheses reads anything that changed, or that runs."""
    changed = {*changed_inputs(before, now), *running(now)}
    by_code: dict[str, list[Hypothesis]] = {}
    for item in all_hypotheses():
        by_code.setdefault(item.code, []).append(item)
    return tuple(code for code, items in by_code.items() if not any(changed & reads(item) for item in items))


def reads(item: Hypothesis) -> set[str]:
    """The exhibits that an answer depends on. Replays build on each other, so each depends on all that any of them reads."""
    found = {name for need in item.needs for name in _READS.get(need, (need,))}
    return found | set(_REPLAY) if item.depth in ("replay", "live") else found | {"engine"}


def _of_path(path: Path) -> str:
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path) if path.is_dir() else file.name}\0{size}\0".encode())
        with open(file, "rb") as stream:
            if size <= _WHOLE:
                while block := stream.read(_EDGE):
                    digest.update(block)
            else:
                digest.update(stream.read(_EDGE))
                stream.seek(size - _EDGE)
                digest.update(stream.read(_EDGE))
    return f"sha256 {digest.hexdigest()}"
