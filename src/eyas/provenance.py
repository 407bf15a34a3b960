"""What made an artefact: versions, dtype, device and command. Recorded, never compared with anything but itself on resume."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

_PACKAGES = ("eyas", "torch", "transformers", "tokenizers", "safetensors")


def versions() -> dict[str, str]:
    """Versions of what shapes the numbers; "not installed" for a package that runs from its source folder."""
    return {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()}


def command_line(arguments: Sequence[str], hide: Sequence[str] = ("--out",)) -> str:
    """The command as it was given, with the values of `hide` left out: the same work into another folder is the same work."""
    shown: list[str] = []
    for position, argument in enumerate(arguments):
        option = argument.split("=", 1)[0]
        if option in hide and "=" in argument:
            shown.append(f"{option}=...")
        elif position and arguments[position - 1] in hide:
            shown.append("...")
        else:
            shown.append(argument)
    return " ".join(shown)


def provenance(*, dtype: str, device: str, command: str) -> dict[str, object]:
    """A JSON object to store beside what was made. It holds no time of day, so that equal work gives equal files."""
    return {"versions": versions(), "dtype": dtype, "device": device, "command": command}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
