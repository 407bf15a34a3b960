"""A foreign checkpoint's tensors under Eyas's names, with nothing lost on the way and nothing made up."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from eyas.draft.checkpoint import wanted_shapes
from eyas.draft.config import DraftConfig
from eyas.errors import UserError, in_words
from eyas.formats.base import HEAD_KEYS, Format
from eyas.formats.safe import Foreign, load_pickled

_WRAPPERS = ("draft_model.", "module.", "_orig_mod.", "_fsdp_wrapped_module.", "model.")
_DROPPED = {
    r"(.*\.)?rotary_emb\.inv_freq": "RoPE's frequencies, compared with those that the config gives",
    r"verifier_(norm|lm_head)\.weight": "a part of the target, used in training only",
    r"(model\.)?mask_hidden": "P-EAGLE's placeholder, which no step of EAGLE-3 reads",
}
_SIDE_MAPS = ("eagle_meta.pt", "eagle3_meta.pt")  # where some versions of Automodel kept the vocabulary map
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def unwrapped(keys: Collection[str], root: str) -> tuple[dict[str, str], str]:
    """Keys without what a trainer's wrapper put before all of them (the head and its maps may go without), and that prefix.

    Args:
        root: what the format itself puts there.
    """
    plain, taken = {key: key for key in keys}, ""
    while True:
        for prefix in _WRAPPERS:
            carry = [key for key in plain.values() if key.startswith(prefix)]
            if carry and prefix != root and all(key in carry or key in HEAD_KEYS for key in plain.values()):
                break
        else:
            return plain, taken
        plain, taken = {key: name.removeprefix(prefix) for key, name in plain.items()}, taken + prefix


def renamed(foreign: Foreign, fmt: Format) -> tuple[dict[str, torch.Tensor], dict[str, str], list[str]]:
    """Tensors by Eyas's name, their keys in the file by the same name, and notes on what was left out.

    Raises UserError for a key that the format has not.
    """
    keys, wrapper = unwrapped(foreign.tensors, fmt.root)
    notes = [f"keys carried the prefix {wrapper}, which a trainer's wrapper puts there"] if wrapper else []
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


def doubts_on_map(tensors: Mapping[str, torch.Tensor], config: DraftConfig) -> list[str]:
    """A line if d2t could as well hold the target's ids themselves, and no t2d says which."""
    d2t = tensors.get("d2t")
    if d2t is None or "t2d" in tensors or config.full_vocabulary or d2t.dim() != 1 or d2t.is_floating_point() or d2t.is_complex():
        return []
    could_be_ids = bool((d2t[1:] > d2t[:-1]).all()) and bool(((d2t >= 0) & (d2t < config.vocab_size)).all())
    why = "every project stores those; its numbers rise at each step, so they could be the target's ids, and there is no t2d to tell"
    return [f"d2t = offsets: {why}"] if could_be_ids else []


def check_tensors(
    tensors: Mapping[str, torch.Tensor], origins: Mapping[str, str], config: DraftConfig, foreign: Foreign, fmt: Format
) -> None:
    """All there, none spare, shapes as the config says, finite. Raises UserError that names the key as the file has it."""
    wanted = wanted_shapes(config, str(foreign.folder / "config.json"))
    missing = sorted(fmt.key(name) for name in set(wanted) - set(tensors))
    spare = sorted(origins.get(name, name) for name in set(tensors) - set(wanted))
    if missing or spare:
        raise UserError(
            f"{foreign.folder}: the weights do not fit config.json",
            got=f"missing {in_words(missing)}; not read {in_words(spare)}",
            remedy=_why(spare),
        )
    for name, shape in wanted.items():
        tensor, key = tensors[name], origins.get(name, name)
        where = foreign.where(key)
        if tensor.shape != shape:
            raise UserError(
                f"{where}: {key} has another shape than config.json says", got=list(tensor.shape), allowed=list(shape), remedy=_why([])
            )
        if name in ("d2t", "t2d"):
            continue
        if tensor.dtype not in _FLOATS:
            raise UserError(
                f"{where}: {key} is no plain floating-point weight",
                got=tensor.dtype,
                allowed=", ".join(map(str, _FLOATS)),
                remedy="export the draft again in bf16",
            )
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


def _why(spare: list[str]) -> str:
    hints = {
        "expert": "a draft with experts cannot be carried",
        ".layers.1.": "a draft of several layers cannot be carried",
        "layers.1.": "a draft of several layers cannot be carried",
        "_scale": "quantised weights cannot be carried: export the draft in bf16",
        "g_proj": "an output gate in attention cannot be carried",
        "parallel_draft_heads": "heads for parallel drafting cannot be carried",
        "markov": "a DSpark draft cannot be carried",
    }
    otherwise = "use the config.json that was saved with the weights; if another project wrote them, name it with --from"
    return next((words for mark, words in hints.items() if any(mark in key for key in spare)), otherwise)
