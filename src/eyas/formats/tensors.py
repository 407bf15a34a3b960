"""A foreign checkpoint's tensors under Eyas's names, with nothing lost on the way and nothing made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from eyas.draft.checkpoint import wanted_shapes
from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.formats.base import Format
from eyas.formats.safe import Foreign, load_pickled

_TRAINER_PREFIX = "draft_model."
_DROPPED = {
    r"(.*\.)?rotary_emb\.inv_freq": "RoPE's frequencies, compared with those that the config gives",
    r"verifier_(norm|lm_head)\.weight": "a part of the target, used in training only",
    r"(model\.)?mask_hidden": "P-EAGLE's placeholder, which no step of EAGLE-3 reads",
}
_SIDE_MAPS = ("eagle_meta.pt", "eagle3_meta.pt")  # where some versions of Automodel kept the vocabulary map
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def renamed(foreign: Foreign, fmt: Format) -> tuple[dict[str, torch.Tensor], dict[str, str], list[str]]:
    """Tensors by Eyas's name, their keys in the file by the same name, and notes on what was left out.

    Raises UserError for a key that the format has not.
    """
    keys = {key: key for key in foreign.tensors}
    notes = []
    if all(key.startswith(_TRAINER_PREFIX) or key in ("d2t", "t2d") for key in keys):
        keys = {key: key.removeprefix(_TRAINER_PREFIX) for key in keys}
        notes.append(f"keys carried the trainer's prefix {_TRAINER_PREFIX}")
    tensors, origins, spare = {}, {}, []
    for key, plain in keys.items():
        why = next((why for pattern, why in _DROPPED.items() if re.fullmatch(pattern, plain)), None)
        name = fmt.eyas_name(plain)
        if why is not None:
            notes.append(f"{key} was left out: {why}")
        elif name is None or name in tensors:
            spare.append(key)
        else:
            tensors[name], origins[name] = foreign.tensors[key], key
    if spare:
        raise UserError(
            f"{foreign.folder}: {fmt.title} has no such tensors in a draft of one layer", got=sorted(spare)[:8], remedy=_why(spare)
        )
    return tensors, origins, notes


def with_maps(tensors: dict[str, torch.Tensor], config: DraftConfig, foreign: Foreign, fmt: Format) -> list[str]:
    """Put d2t and t2d in place if the format leaves them out or keeps them as other numbers. Returns notes on it.

    Raises UserError if the map of a reduced vocabulary is nowhere.
    """
    notes = []
    if "d2t" not in tensors:
        side = next((foreign.folder / name for name in _SIDE_MAPS if (foreign.folder / name).is_file()), None)
        if config.full_vocabulary:
            tensors["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.long)
        elif side is not None:
            ids = _selected_ids(side, config)
            tensors["d2t"] = ids - torch.arange(len(ids))
            notes.append(f"the vocabulary map was taken from {side.name}")
        else:
            raise UserError(
                f"{foreign.folder}: d2t is missing, so the {config.draft_vocab_size} rows of lm_head mean no known tokens",
                remedy="put the map that the draft was trained with into the weights as d2t (offsets: target id = i + d2t[i])",
            )
    for name, dtype in (("d2t", torch.long), ("t2d", torch.bool)):
        held = tensors.get(name)
        if held is not None and held.dtype != dtype:
            if held.is_floating_point() or held.is_complex():
                raise UserError(f"{foreign.where(name)}: {name} holds no whole numbers", got=held.dtype, allowed=dtype)
            tensors[name] = held.to(dtype)
            notes.append(f"{name} was stored as {held.dtype}; the values are the same")
    if "t2d" not in tensors and tensors["d2t"].dim() == 1:
        ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"] = t2d.index_fill_(0, ids[(ids >= 0) & (ids < config.vocab_size)], True)
    return notes


def check_tensors(
    tensors: Mapping[str, torch.Tensor], origins: Mapping[str, str], config: DraftConfig, foreign: Foreign, fmt: Format
) -> None:
    """All there, none spare, shapes as the config says, finite. Raises UserError that names the key as the file has it."""
    wanted = wanted_shapes(config, str(foreign.folder / "config.json"))
    missing = sorted(fmt.key(name) for name in set(wanted) - set(tensors))
    spare = sorted(origins.get(name, name) for name in set(tensors) - set(wanted))
    if missing or spare:
        raise UserError(
            f"{foreign.folder}: the weights do not fit config.json", got=f"missing {missing}, not read {spare}", remedy=_why(spare)
        )
    for name, shape in wanted.items():
        tensor, key = tensors[name], origins.get(name, name)
        where = foreign.where(key)
        if tensor.shape != shape:
            raise UserError(f"{where}: {key} has another shape than config.json says", got=list(tensor.shape), allowed=list(shape))
        if name in ("d2t", "t2d"):
            continue
        if tensor.dtype not in _FLOATS:
            raise UserError(f"{where}: {key} is no plain floating-point weight", got=tensor.dtype, allowed=", ".join(map(str, _FLOATS)))
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{where}: {key} holds NaN or infinity", remedy="the training diverged, or the file is damaged")


def check_frequencies(foreign: Foreign, exact: torch.Tensor) -> None:
    """RoPE's frequencies where a file brings them along; rounded ones pass. Raises UserError if they are others."""
    for key, stored in foreign.tensors.items():
        if not key.endswith("rotary_emb.inv_freq"):
            continue
        fits = stored.shape == exact.shape and stored.is_floating_point()
        if not fits or not torch.allclose(stored.float(), exact, rtol=1e-2, atol=0.0):
            raise UserError(
                f"{foreign.where(key)}: {key} are not the frequencies that config.json gives",
                got=stored.flatten()[:4].tolist(),
                allowed=[round(value, 6) for value in exact[:4].tolist()],
                remedy="correct rope_theta and rope_scaling to what the draft was trained with",
            )


def _selected_ids(path: Path, config: DraftConfig) -> torch.Tensor:
    value = load_pickled(path)
    ids = value.get("selected_token_ids") if isinstance(value, dict) else None
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.shape != (config.draft_vocab_size,):
        raise UserError(f"{path}: selected_token_ids is missing or no list of {config.draft_vocab_size} token ids")
    return ids.long()


def _why(spare: list[str]) -> str | None:
    hints = {
        "expert": "a draft with experts cannot be carried",
        ".layers.1.": "a draft of several layers cannot be carried",
        "layers.1.": "a draft of several layers cannot be carried",
        "_scale": "quantised weights cannot be carried: export the draft in bf16",
        "g_proj": "an output gate in attention cannot be carried",
        "parallel_draft_heads": "heads for parallel drafting cannot be carried",
        "markov": "a DSpark draft cannot be carried",
    }
    return next((words for mark, words in hints.items() if any(mark in key for key in spare)), None)
