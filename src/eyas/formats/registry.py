"""All formats by name."""

from __future__ import annotations

from eyas.errors import UserError
from eyas.formats import angelslim, automodel, eagle, modelopt, specforge, speculators, torchspec
from eyas.formats.base import Format

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT for module in (eagle, specforge, speculators, modelopt, torchspec, automodel, angelslim)
}


def format_of(name: str) -> Format:
    """Raises UserError for a name that no format has."""
    if name not in FORMATS:
        raise UserError(
            "no such format", got=name, allowed=", ".join(FORMATS), remedy="name one of these; docs/formats.md says whose is whose"
        )
    return FORMATS[name]
