"""Which project wrote a dump."""

from __future__ import annotations

from pathlib import Path

from eyas.data.store import MANIFEST
from eyas.errors import UserError
from eyas.files import read_json
from eyas.formats.dumps.automodel import AUTOMODEL
from eyas.formats.dumps.pickled import MODELOPT, SPECFORGE, SPECULATORS_PT
from eyas.formats.dumps.sample import DumpFormat
from eyas.formats.dumps.stack import SPECULATORS, VLLM

FORMATS: dict[str, DumpFormat] = {item.name: item for item in (AUTOMODEL, SPECULATORS, SPECFORGE, MODELOPT, SPECULATORS_PT, VLLM)}


def is_eyas_dump(path: Path) -> bool:
    """Automodel's cache has a manifest.json too."""
    return (path / MANIFEST).is_file() and "dump_format" in read_json(path / MANIFEST, "the manifest")


def is_foreign_dump(path: Path) -> str | None:
    """The format's name, or None. Raises UserError for a pickled file that cannot be read safely."""
    if not path.exists() or (path / "config.json").is_file() or is_eyas_dump(path):  # nothing, a checkpoint, or ours
        return None
    return next((name for name, item in FORMATS.items() if item.files(path)), None)


def dump_format(path: Path, source: str = "auto") -> DumpFormat:
    """Raises UserError if `path` is no dump of `source`, or of any known project."""
    if source not in ("auto", *FORMATS):
        raise UserError(
            "unknown format of a dump", got=source, allowed=f"auto, {', '.join(FORMATS)}", remedy="name one of these, or leave --from out"
        )
    if not path.exists():
        raise UserError(f"the dump does not exist: {path}")
    if is_eyas_dump(path):
        raise UserError(f"{path} is Eyas's own dump already", remedy="train on it as it is")
    name = is_foreign_dump(path) if source == "auto" else source
    if name is None or not FORMATS[name].files(path):
        held = sorted(item.name for item in path.iterdir())[:5] if path.is_dir() else path.name
        raise UserError(f"{path} is no dump of {'a known project' if source == 'auto' else source}", got=held, allowed=", ".join(FORMATS))
    return FORMATS[name]
