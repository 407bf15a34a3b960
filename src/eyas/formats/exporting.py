"""An Eyas draft out, as a checkpoint of another project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from eyas.draft.checkpoint import LoadedDraft, read_draft
from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.files import atomic_folder, write_json
from eyas.formats.base import FEATURES, Format, features_of
from eyas.formats.ids import ANGELSLIM_KEY, KEY, default_boundaries, to_ids
from eyas.formats.registry import format_of
from eyas.formats.report import ConfigChanges, ExportReport
from eyas.formats.safe import CONFIG
from eyas.formats.sidecar import SIDECAR, TRACE, Sidecar, write_sidecar
from eyas.taps import Tap, format_taps
from eyas.targets.devices import dtype_name
from eyas.wiring import WIRING_HASH, Wiring

WEIGHTS = "model.safetensors"


def export_draft(draft_folder: Path, fmt: str, out: Path, *, changes: ConfigChanges | None = None) -> ExportReport:
    """Write the draft in `draft_folder` to `out` in the format of that name; an earlier export there is replaced, nothing else.

    Args:
        changes: keys of config.json that an engine wants otherwise.

    Raises:
        UserError: no such draft or format, the format cannot have such a draft, or `out` holds something else.
    """
    return export_loaded(read_draft(draft_folder), fmt, out, changes=changes)


def export_loaded(loaded: LoadedDraft, fmt: str, out: Path, *, changes: ConfigChanges | None = None) -> ExportReport:
    """The same for a draft in memory, whose tensors are written in the dtypes that they have."""
    form, changes = format_of(fmt), changes or ConfigChanges()
    draft, wiring = loaded.draft, loaded.wiring
    refused = form.refuse(draft.config)
    if refused is not None:
        raise UserError(f"{form.title} cannot have a draft with {refused}", remedy="export it in another format")
    config = config_json(form, draft.config, wiring, changes, dtype_name(draft.fc.weight.dtype))
    tensors = {
        form.key(name): tensor.detach().cpu().contiguous() for name, tensor in draft.state_dict().items() if _kept(form, name, draft.config)
    }
    with atomic_folder(out, overwrite=_is_export) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt", WIRING_HASH: wiring.hash()})
        write_json(temporary / CONFIG, config)
        write_sidecar(temporary / SIDECAR, Sidecar(form.name, wiring, draft.config, tuple(changes.keys)))
        if loaded.trace_file is not None:
            (temporary / TRACE).write_bytes(loaded.trace_file.read_bytes())
    return ExportReport(sorted(path.name for path in out.iterdir()), wiring, [], _notes(form, draft.config, wiring, changes))


def config_json(form: Format, config: DraftConfig, wiring: Wiring, changes: ConfigChanges, dtype: str) -> dict[str, Any]:
    """config.json as the format has it, with the layer ids of the wiring's taps and the changes on top."""
    value = form.write(config, wiring, dtype)
    if form.ids_mean is not None and KEY not in {*changes.top, *changes.eagle_config}:
        ids = to_ids(wiring.taps, form.ids_mean, form.title)
        if form.name == "angelslim":
            value[ANGELSLIM_KEY] = ids
        elif form.name == "speculators":
            value[KEY] = ids
        else:
            value["eagle_config"] = {KEY: ids, "use_aux_hidden_state": True, **value.get("eagle_config", {})}
    value |= changes.top
    if changes.eagle_config:
        value["eagle_config"] = {**value.get("eagle_config", {}), **changes.eagle_config}
    return {key: part for key, part in value.items() if key not in changes.removed}


def _kept(form: Format, name: str, config: DraftConfig) -> bool:
    if name not in ("d2t", "t2d"):
        return True
    return (form.keeps_full_maps or not config.full_vocabulary) and (name == "d2t" or form.keeps_t2d)


def _is_export(folder: Path) -> bool:
    """Whether an export wrote this folder, and nobody put anything beside it."""
    there = {path.name for path in folder.iterdir()}
    return {SIDECAR, CONFIG, WEIGHTS} <= there <= {SIDECAR, CONFIG, WEIGHTS, TRACE}


def _notes(form: Format, config: DraftConfig, wiring: Wiring, changes: ConfigChanges) -> list[str]:
    unknown = sorted(features_of(config) - form.runs)
    notes = [
        f"{form.title}'s own code does not know {FEATURES[name]}, and would run this draft otherwise or not at all" for name in unknown
    ]
    notes += form.warn(config)
    if Tap(0) in wiring.taps and form.ids_mean == "output" and not changes.keys:
        notes.append("the embedding is written as layer id -1, which most readers refuse: eyas wiring translate says what an engine wants")
    if form.fixed_taps:
        notes.append(_fixed(form, wiring))
    elif form.ids_mean is None:
        notes.append(f"{form.title} keeps no layer ids: which states the draft reads ({format_taps(wiring.taps)}) is in {SIDECAR} only")
    if form.name == "speculators":
        notes.append(f"speculators_config.verifier.name_or_path is {wiring.target_name!r}: change it to what the verifier is served as")
    if changes.keys:
        notes.append(f"written for one engine, not for {form.title} itself: {', '.join(changes.keys)}")
    return notes


def _fixed(form: Format, wiring: Wiring) -> str:
    layers = wiring.num_target_layers
    if layers is not None and wiring.taps == tuple(Tap(boundary) for boundary in default_boundaries(layers)):
        return f"{form.title}'s code captures {format_taps(wiring.taps)}, as this draft wants it"
    here = f"this draft reads {format_taps(wiring.taps)}, which is in {SIDECAR} only"
    return f"{form.title}'s code always captures what enters layers 2, N // 2 and N - 3; {here}"
