"""`eyas_wiring.json` beside a foreign checkpoint: what its own config has no keys for, so that nothing is lost or guessed.

It holds the wiring and the draft's config whole. Whoever reads the checkpoint again compares both with what the config
and the tensors say, so an edited or mixed folder is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.files import read_small_json, write_json
from eyas.wiring import Wiring

SIDECAR = "eyas_wiring.json"
# The trace is a safetensors file under another ending: engines read every *.safetensors of a folder as weights.
TRACE = "eyas_trace.dat"
_FORMAT = 1


@dataclass(frozen=True)
class Sidecar:
    """`engine_keys`: keys of config.json whose values are one engine's, not the format's own."""

    format: str
    wiring: Wiring
    config: DraftConfig
    engine_keys: tuple[str, ...] = ()


def write_sidecar(path: Path, sidecar: Sidecar) -> None:
    value = {
        "eyas_sidecar_format": _FORMAT,
        "format": sidecar.format,
        "engine_keys": list(sidecar.engine_keys),
        "wiring": sidecar.wiring.to_json(),
        "config": sidecar.config.to_json(),
    }
    write_json(path, value)


def read_sidecar(folder: Path, formats: Sequence[str]) -> Sidecar | None:
    """None if there is none. Raises UserError for one that is damaged or of another version."""
    path = folder / SIDECAR
    if not path.exists():
        return None
    value = read_small_json(path, "the wiring beside the checkpoint")
    keys = {"eyas_sidecar_format", "format", "engine_keys", "wiring", "config"}
    engine_keys = value.get("engine_keys")
    if set(value) != keys or value["eyas_sidecar_format"] != _FORMAT or value["format"] not in formats:
        raise UserError(f"{path} was edited, or a newer Eyas wrote it", got=sorted(value), allowed=sorted(keys))
    if not isinstance(engine_keys, list) or not all(isinstance(key, str) for key in engine_keys):
        raise UserError(f"{path}: engine_keys must be a list of names", got=repr(engine_keys)[:80])
    if not isinstance(value["config"], dict):
        raise UserError(f"{path}: config must be an object", got=type(value["config"]).__name__)
    return Sidecar(
        value["format"],
        Wiring.from_json(value["wiring"], f"{path}: wiring"),
        DraftConfig.from_json(value["config"], f"{path}: config"),
        tuple(engine_keys),
    )
