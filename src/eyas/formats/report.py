"""What an import or export did, for the user and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.wiring import Wiring


@dataclass(frozen=True)
class ConfigChanges:
    """What an engine wants in config.json otherwise than the format's own project writes it.

    `top` is merged at top level, `eagle_config` into the object of that name, `removed` are top-level keys to leave out.
    """

    top: Mapping[str, Any] = field(default_factory=dict)
    eagle_config: Mapping[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        return sorted({*self.top, *self.eagle_config, *self.removed})


@dataclass(frozen=True)
class Report:
    """`assumed`: what was not said and was taken by default, with the reason. `notes`: what the user should know."""

    written: list[str]
    wiring: Wiring
    assumed: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {"written": self.written, "wiring": self.wiring.to_json(), "assumed": self.assumed, "notes": self.notes}


@dataclass(frozen=True)
class ImportReport(Report):
    """`written` lists the files of the new draft; `source` is the format that was read."""

    source: str

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"from": self.source}


@dataclass(frozen=True)
class ExportReport(Report):
    """`written` lists the files of the folder that was written."""
