"""One pickled file a conversation: speculators 0.3 to 0.7 (`.pt`), SpecForge (`.ckpt`) and Model-Optimizer (`.pt`).

    speculators      input_ids [T], loss_mask [T], hidden_states: a list of [T, H], the last one for the labels
    SpecForge        input_ids, loss_mask, hidden_state [1, T, H] (labels, after the norm), aux_hidden_state [1, T, n·H]
    Model-Optimizer  input_ids, hidden_states [T, H] (labels; hidden_states_prenorm says how), aux_hidden_states [T, n·H],
                     loss_mask and conversation_id where they were asked for

In all three an id is the OUTPUT of that layer. (Read in speculators 0.3.0 data_generation/custom_worker.py, which adds a
layer's hidden state and residual after it ran; specforge 0.2.0 data/preprocessing.py; nvidia-modelopt 0.47.0
torch/speculative/eagle/utils.py.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from eyas.errors import UserError
from eyas.formats.dumps.files import files_below, get_ids, get_mask, get_states, read_mapping, split_slots
from eyas.formats.dumps.sample import DumpFormat, ForeignSample


def _files(suffix: str, key: str) -> Any:
    """Files of that ending, if the first one holds `key`: `.pt` is used by several projects."""

    def find(path: Path) -> list[Path]:
        found = files_below(path, suffix)
        return found if found and _fits(read_mapping(found[0]), key) else []

    return find


def _fits(values: Mapping[str, Any], key: str) -> bool:
    return key in values and (key != "hidden_states" or isinstance(values[key], list | tuple))


def _read_speculators(path: Path) -> Iterator[ForeignSample]:
    values = read_mapping(path)
    ids = get_ids(values, "input_ids", path)
    layers = values.get("hidden_states")
    if not isinstance(layers, list | tuple) or len(layers) < 2:
        raise UserError(f"{path}: hidden_states must be a list of at least two states", got=type(layers).__name__)
    named = {f"hidden_states[{number}]": layer for number, layer in enumerate(layers)}
    states = [get_states(named, key, path, len(ids)) for key in named]
    if len({(state.shape, state.dtype) for state in states}) != 1 or states[0].ndim != 2:
        raise UserError(f"{path}: the states are not of one shape [tokens, hidden size]", got=[list(state.shape) for state in states])
    yield ForeignSample(path.stem, ids, torch.stack(states[:-1], dim=1), states[-1], get_mask(values, "loss_mask", path, len(ids)))


def _read_flat(last_key: str, taps_key: str, path: Path) -> Iterator[ForeignSample]:
    values = read_mapping(path)
    ids = get_ids(values, "input_ids", path)
    last_TH = get_states(values, last_key, path, len(ids))
    states = split_slots(get_states(values, taps_key, path, len(ids)), last_TH.shape[-1], taps_key, path)
    prenorm, name = values.get("hidden_states_prenorm"), values.get("conversation_id")
    if prenorm is not None and not isinstance(prenorm, bool):
        raise UserError(f"{path}: hidden_states_prenorm must be true or false", got=repr(prenorm)[:80])
    if name is not None and not isinstance(name, str | int):
        raise UserError(f"{path}: conversation_id must be a name", got=repr(name)[:80])
    mask = get_mask(values, "loss_mask", path, len(ids))
    yield ForeignSample(path.name.split(".")[0] if name in (None, "") else str(name), ids, states, last_TH, mask, prenorm)


SPECULATORS_PT = DumpFormat(
    name="speculators-pt",
    convention="output",
    files=_files(".pt", "hidden_states"),
    read=_read_speculators,
    default_ids=lambda layers: [2, layers // 2, layers - 3],
    said="speculators 0.3 to 0.7: ids are outputs of layers, N-1 is appended for the labels",
    last_in_stack=True,
)
SPECFORGE = DumpFormat(
    name="specforge",
    convention="output",
    files=_files(".ckpt", "aux_hidden_state"),
    read=lambda path: _read_flat("hidden_state", "aux_hidden_state", path),
    default_ids=lambda layers: [1, layers // 2 - 1, layers - 4],
    said="SpecForge: ids are outputs of layers",
)
MODELOPT = DumpFormat(
    name="modelopt",
    convention="output",
    files=_files(".pt", "aux_hidden_states"),
    read=lambda path: _read_flat("hidden_states", "aux_hidden_states", path),
    default_ids=lambda layers: sorted({1, layers // 2 - 1, layers - 4}),
    said="Model-Optimizer: ids are outputs of layers, in ascending order",
)
