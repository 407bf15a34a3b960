"""What a foreign checkpoint says of a draft, kept apart from what is only assumed of it.

A field of the draft's config is *stated* if a key or a tensor says it, *assumed* if the project's code has a default for
it. `eyas_wiring.json` beside a checkpoint takes the place of assumptions, and must not contradict what is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.draft.config import FORMAT, DraftConfig
from eyas.errors import UserError

_MLA = "mla."


@dataclass
class Reading:
    """Fields of `DraftConfig` by name; those of its MLA part as `mla.NAME`. `where` names the config in errors."""

    where: str
    stated: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, tuple[Any, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def state(self, name: str, value: Any) -> None:
        """Raises UserError if a key and a tensor say different things."""
        if name in self.stated and self.stated[name] != value:
            raise UserError(
                f"{self.where}: weights and config disagree on {name}",
                got=f"{self.stated[name]!r} by the weights, {value!r} by the config",
                remedy="use the config.json that was saved with these weights, or correct it to what the draft was trained with",
            )
        self.stated[name] = value

    def assume(self, name: str, value: Any, why: str) -> None:
        self.assumed[name] = (value, why)

    def get(self, name: str) -> Any:
        """What is known so far, stated or assumed; None if nothing is."""
        return self.stated[name] if name in self.stated else self.assumed.get(name, (None, ""))[0]

    def settle(self, told: DraftConfig | None, told_by: str) -> tuple[DraftConfig, list[str]]:
        """The draft's config, and a line for everything that had to be assumed.

        Args:
            told: the config that `told_by` gives; it answers what is not stated.

        Raises:
            UserError: it contradicts what is stated, or no draft has these settings.
        """
        known = _flat(told.to_json()) if told is not None else {}
        for name, value in self.stated.items():
            if told is not None and known.get(name) != value:
                raise UserError(
                    f"{told_by} contradicts {self.where}",
                    got=f"{name} is {known.get(name)!r} in the one and {value!r} in the other",
                    remedy=f"one of the two was edited, or files were mixed; remove {told_by} to go by the checkpoint alone",
                )
        values = {name: value for name, (value, _) in self.assumed.items()} | known | self.stated
        lines = [f"{name} = {value}: {why}" for name, (value, why) in self.assumed.items() if name not in known and name not in self.stated]
        return DraftConfig.from_json(_nested(values), self.where), lines


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: part for name, part in value.items() if name not in ("mla", "eyas_draft_format")}
    return fields | {_MLA + name: part for name, part in (value["mla"] or {}).items()}


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    mla = {name.removeprefix(_MLA): value for name, value in values.items() if name.startswith(_MLA)}
    fields = {name: value for name, value in values.items() if not name.startswith(_MLA)}
    return {"eyas_draft_format": FORMAT, **fields, "mla": mla or None}
