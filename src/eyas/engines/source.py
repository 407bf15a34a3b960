"""The wiring to plan for, and the draft's own config if there is one: from a draft, a dump or a wiring.json. No torch."""

from __future__ import annotations

from pathlib import Path

from eyas.engines.draft_facts import DraftFacts
from eyas.errors import UserError
from eyas.files import read_json
from eyas.wiring import Wiring


def read_source(path: Path) -> tuple[Wiring, DraftFacts | None]:
    """Raises UserError for anything else, and for a wiring that names no taps."""
    draft = None
    if (path / "wiring.json").is_file():
        wiring, draft = _wiring(path / "wiring.json"), DraftFacts.read(path)
        if wiring.taps and len(wiring.taps) != draft.config["num_taps"]:
            raise UserError(f"{path}: wiring and config disagree on the taps", got=len(wiring.taps), allowed=draft.config["num_taps"])
    elif (path / "manifest.json").is_file():
        manifest = read_json(path / "manifest.json", "the dump's manifest")
        wiring = Wiring.from_json(manifest.get("wiring", {}), str(path / "manifest.json"))
    elif path.is_file():
        wiring = _wiring(path)
    else:
        raise UserError("neither a draft, nor a dump, nor a wiring.json", got=str(path), remedy="give the folder of an Eyas draft")
    if not wiring.taps:
        raise UserError(f"the wiring of {path} names no taps", remedy="those of a draft are found out by eyas wiring infer")
    return wiring, draft


def _wiring(path: Path) -> Wiring:
    return Wiring.from_json(read_json(path, "the wiring"), str(path))
