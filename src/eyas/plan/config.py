"""A model's config.json by file, by folder or by name, and reading numbers out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import UserError
from eyas.files import read_json
from eyas.plan.known import KNOWN

_LARGEST = 10**9  # of any size that a config states


@dataclass(frozen=True)
class Config:
    """`model`: the language model's own part; `whole`: the file. `where` names it in errors."""

    name: str
    where: str
    whole: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return str(self.model.get("model_type") or self.whole.get("model_type"))

    @property
    def has_other_parts(self) -> bool:
        """A vision tower, say: it is not counted."""
        return self.model is not self.whole

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is set, else `default`. Raises UserError if neither is there, or it is no whole number."""
        for name in names:
            value = self.model.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
                raise UserError(f"{self.where}: {name} must be a whole number", got=repr(value)[:80], allowed=f"0 to {_LARGEST:,}")
            return value
        if default is None:
            raise UserError(
                f"{self.where} does not say how large the model is",
                got=f"no {' or '.join(names)}",
                remedy="copy config.json whole from where the model is published",
            )
        return default

    def items(self, name: str) -> list[Any]:
        """A list, empty if it is not there. Raises UserError for anything else."""
        value = self.model.get(name)
        if value is not None and not isinstance(value, list):
            raise UserError(f"{self.where}: {name} must be a list", got=repr(value)[:80])
        return value or []

    def positive(self, *names: str, default: int | None = None) -> int:
        value = self.number(*names, default=default)
        if value < 1:
            raise UserError(f"{self.where}: {names[0]} must be at least 1", got=value)
        return value


def read_config(target: str) -> Config:
    """An existing path wins over a name. Raises UserError if it is neither, or the file is no model's config."""
    path = Path(target).expanduser()
    if path.exists():
        file = path / "config.json" if path.is_dir() else path
        return _config(path.resolve().name if path.is_dir() else path.name, str(file), read_json(file, "the model's config"))
    name = next((name for name in KNOWN if name.lower() == target.rsplit("/", 1)[-1].lower()), None)
    if name is None:
        raise UserError(
            "--target is neither a file or folder nor a model known by name",
            got=target,
            allowed=f"a config.json, a folder with one, or {', '.join(KNOWN)}",
            remedy="save the model's config.json and give its path: no weights are needed",
        )
    return _config(name, f"the config of {name}", KNOWN[name])


def _config(name: str, where: str, whole: Mapping[str, Any]) -> Config:
    model = whole.get("text_config", whole)
    if not isinstance(model, Mapping):
        raise UserError(f"{where}: text_config must be an object", got=type(model).__name__)
    return Config(name, where, whole, model)
