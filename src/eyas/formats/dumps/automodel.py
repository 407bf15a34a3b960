"""NeMo Automodel's EAGLE-3 cache: `manifest.json` and `shard-000000.safetensors` with fields stacked over samples.

    input_ids, attention_mask, loss_mask [n, S]; aux_hidden_states [n, S, 3·H]; position_mask; target_probs (or top-k)

Its ids and loss mask are SHIFTED: entry p belongs to token p+1, the first token of every text is not stored and the last
entry is zero, while the states are not shifted. There is no last state, only the probabilities over its draft vocabulary.
The manifest states aux_layer_ids: outputs of layers. (Read in nemo-automodel 0.7.0 speculative/eagle/target.py,
datasets/llm/eagle3_cache.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eyas.errors import UserError, in_words
from eyas.files import read_small_json
from eyas.formats.dumps.files import files_below, get_tensor, split_slots
from eyas.formats.dumps.sample import DumpFormat, ForeignSample
from eyas.formats.flat import size_of
from eyas.formats.safe import read_tensors

_MANIFEST, _FORMAT = "manifest.json", 2


def _files(path: Path) -> list[Path]:
    if not (path / _MANIFEST).is_file():
        return []
    manifest = read_small_json(path / _MANIFEST, "the manifest")
    if "aux_layer_ids" not in manifest:
        return []
    found = [file for file in files_below(path, ".safetensors") if file.name.startswith("shard-")]
    samples, size = (size_of(manifest, key, str(path / _MANIFEST)) for key in ("num_samples", "shard_size"))
    if samples is None or size is None:
        raise UserError(f"{path / _MANIFEST} lacks num_samples or shard_size", got=sorted(manifest)[:12])
    wanted = -(-samples // size)
    if len(found) != wanted or [file.name for file in found] != [f"shard-{number:06d}.safetensors" for number in range(wanted)]:
        raise UserError(
            f"{path} does not hold the shards that {_MANIFEST} speaks of",
            got=[file.name for file in found][:4],
            allowed=f"{wanted}, for {samples} samples, {size} a shard",
            remedy="copy the folder again, whole",
        )
    return found


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_small_json(folder / _MANIFEST, "Automodel's manifest")
    if manifest.get("format_version") != _FORMAT:
        raise UserError(f"{folder / _MANIFEST} is of an unknown format", got=manifest.get("format_version"), allowed=_FORMAT)
    return manifest


def _stated_ids(path: Path) -> list[int]:
    ids = _manifest(path).get("aux_layer_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
        raise UserError(f"{path / _MANIFEST}: aux_layer_ids must be a list of whole numbers", got=repr(ids)[:80])
    return ids


def _read(path: Path) -> Iterator[ForeignSample]:
    ids, tensors = _stated_ids(path.parent), read_tensors(path)[0]
    tokens_nS, mask_nS, length_nS = (get_tensor(tensors, key, path) for key in ("input_ids", "loss_mask", "attention_mask"))
    states_nSW = get_tensor(tensors, "aux_hidden_states", path)
    for key, tensor in (("input_ids", tokens_nS), ("loss_mask", mask_nS), ("attention_mask", length_nS)):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.ndim != 2:
            raise UserError(f"{path}: {key} must be rows of whole numbers", got=f"{tensor.dtype} {list(tensor.shape)}")
    shapes = {tuple(tensor.shape) for tensor in (tokens_nS, mask_nS, length_nS)}
    if len(shapes) != 1 or states_nSW.ndim != 3 or tuple(states_nSW.shape[:2]) not in shapes or states_nSW.shape[2] % len(ids):
        raise UserError(
            f"{path}: the fields have shapes that do not fit", got=f"{in_words(sorted(shapes))}, states {list(states_nSW.shape)}"
        )
    for number in range(len(tokens_nS)):
        length = int(length_nS[number].sum())
        if length < 1 or not bool(length_nS[number, :length].all()):
            raise UserError(f"{path}: attention_mask of sample {number} is not a text padded on the right")
        states = split_slots(states_nSW[number, :length], states_nSW.shape[2] // len(ids), "aux_hidden_states", path)
        yield ForeignSample(
            id=f"{path.stem}/{number}",
            token_ids=_unshifted(tokens_nS[number], length),
            states=states,
            last=None,
            loss_mask=_unshifted(mask_nS[number], length).bool(),
            first_token_missing=True,
        )


def _unshifted(row_S: torch.Tensor, length: int) -> torch.Tensor:
    """Entry p back to p+1; entry 0 becomes a placeholder."""
    return torch.cat([row_S.new_zeros(1), row_S[: length - 1]]).long()


AUTOMODEL = DumpFormat(
    name="automodel",
    convention="output",
    files=_files,
    read=_read,
    default_ids=None,
    said="NeMo Automodel: the manifest's aux_layer_ids are outputs of layers",
    stated_ids=_stated_ids,
)
