"""A draft on disk: config.json, model.safetensors (see `weights`), wiring.json, trace.safetensors and a README.md.

Every tensor must be read and every parameter written; the map between draft and target vocabulary is checked for its
invariants. An embedding or head that belongs to the target is not stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.weights import WEIGHTS, has_weights, read_tensors, weight_files
from eyas.errors import UserError, in_words
from eyas.files import atomic_folder, metadata_of, read_json, sha256_text, write_json
from eyas.targets.target import Target
from eyas.wiring import WIRING_HASH, Wiring, require_match

CONFIG, WIRING, TRACE, CARD = "config.json", "wiring.json", "trace.safetensors", "README.md"

_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_DTYPES = {"d2t": (torch.int64,), "t2d": (torch.bool,)}


@dataclass(frozen=True)
class LoadedDraft:
    """`trace_file` is the fingerprint of the target that the draft was trained on, if it came along."""

    draft: Eagle3Draft
    wiring: Wiring
    name: str
    trace_file: Path | None


def is_draft(folder: Path) -> bool:
    return (folder / WIRING).is_file() and has_weights(folder)


def save_draft(
    folder: Path, draft: Eagle3Draft, wiring: Wiring, trace_file: Path | None, card: str, dtype: torch.dtype | None = torch.bfloat16
) -> None:
    """Write the folder as a whole or not at all.

    Args:
        dtype: of all floating-point tensors; None leaves each as it is.

    Raises UserError if the folder holds anything already: a trained draft is not overwritten.
    """
    tensors = {name: _stored(tensor, dtype) for name, tensor in draft.state_dict().items()}
    with atomic_folder(folder) as temporary:
        save_file(tensors, temporary / WEIGHTS, metadata={WIRING_HASH: wiring.hash()})
        write_json(temporary / CONFIG, draft.config.to_json())
        write_json(temporary / WIRING, wiring.to_json())
        if trace_file is not None:
            (temporary / TRACE).write_bytes(trace_file.read_bytes())
        (temporary / CARD).write_text(card, encoding="utf-8")


def require_draft(folder: Path) -> None:
    """Raises UserError for a folder that is missing, or that holds no Eyas draft."""
    remedy = "train one (eyas train) or pull one (eyas model pull smollm2-135m-draft)"
    if not folder.is_dir():
        raise UserError(f"draft folder {'is a file' if folder.exists() else 'does not exist'}: {folder}", remedy=remedy)
    if not (folder / WIRING).is_file():
        got = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "an empty folder"
        elsewhere = f"; one of another project is imported first: eyas import {folder} --out DRAFT" if (folder / CONFIG).is_file() else ""
        raise UserError(f"{folder} is not an Eyas draft: it has no {WIRING}", got=got, remedy=remedy + elsewhere)


def read_wiring(folder: Path) -> Wiring:
    """The draft's wiring, without reading a tensor. Raises UserError if it is damaged, or if there is no draft."""
    require_draft(folder)
    return Wiring.from_json(read_json(folder / WIRING, "the draft's wiring"), str(folder / WIRING))


def require_taps(wiring: Wiring, folder: Path) -> None:
    """Raises UserError if nobody knows what the draft reads: it was imported from files that do not say."""
    if not wiring.taps:
        raise UserError(
            f"which states the draft {folder} reads is not known",
            got="a draft that was imported with --taps unknown",
            remedy=f"find it out: eyas wiring infer --target TARGET --draft {folder} --data CHATS; then import it again with --taps",
        )


def load_draft(folder: Path, target: Target, dtype: torch.dtype, *, taps_known: bool = True) -> LoadedDraft:
    """Load onto the target's device and share its embedding.

    Args:
        taps_known: False lets a draft pass of which nobody knows what it reads, to find that out.

    Raises:
        UserError: files missing or damaged, tensors missing, spare, of another shape or not finite, a vocabulary map
            that breaks its invariants, another hidden size than the target's.
    """
    wiring = read_wiring(folder)
    config = DraftConfig.from_json(read_json(folder / CONFIG, "the draft's config"), str(folder / CONFIG))
    if taps_known:
        require_taps(wiring, folder)
    _check_sizes(config, wiring, target, folder)
    draft = _checked(config, wiring, folder)
    draft.to(device=target.device, dtype=dtype).eval().requires_grad_(False)
    draft.use_target(target)
    trace = folder / TRACE
    return LoadedDraft(draft, wiring, folder.resolve().name, trace if trace.is_file() else None)


def read_draft(folder: Path) -> LoadedDraft:
    """Load without a target, on the CPU and each tensor in the dtype it is stored in; `use_target` must come before a step.

    Raises UserError for the same faults as `load_draft`, but for those that only a target shows.
    """
    wiring = read_wiring(folder)
    config = DraftConfig.from_json(read_json(folder / CONFIG, "the draft's config"), str(folder / CONFIG))
    require_taps(wiring, folder)
    _check_taps(config, wiring, folder)
    draft = _checked(config, wiring, folder).eval().requires_grad_(False)
    trace = folder / TRACE
    return LoadedDraft(draft, wiring, folder.resolve().name, trace if trace.is_file() else None)


def draft_wiring_fields(draft: Eagle3Draft) -> dict[str, Any]:
    """The part of the wiring that only the draft knows, read off the module itself, not off a config."""
    config = draft.config
    return {
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "rope_inv_freq": tuple(draft.midlayer.rope.inv_freq.float().tolist()),
        "rope_attention_scaling": float(draft.midlayer.rope.attention_scaling),
        "rope_offset": 0,
        "d2t_kind": "full" if config.full_vocabulary else "offset",
        "d2t_hash": sha256_text(json.dumps(draft.d2t.tolist())),
        "embedding_source": "draft" if config.own_embedding else "target",
        "lm_head_source": "target" if config.lm_head_source == "target" else "draft",
    }


def check_vocab_map(draft: Eagle3Draft, where: str) -> None:
    """Target ids i + d2t[i] must be in range, strictly increasing, and exactly those that t2d marks."""
    ids = draft.to_target(torch.arange(draft.config.draft_vocab_size, device=draft.d2t.device))
    remedy = "take d2t and t2d from the checkpoint that lm_head was trained with"
    if int(ids.min()) < 0 or int(ids.max()) >= draft.config.vocab_size:
        raise UserError(
            f"{where}: d2t leads out of the target's vocabulary",
            got=f"ids {int(ids.min())} to {int(ids.max())}",
            allowed=f"0 to {draft.config.vocab_size - 1}",
            remedy=remedy,
        )
    if not bool((ids[1:] > ids[:-1]).all()):
        raise UserError(f"{where}: target ids i + d2t[i] are not strictly increasing", remedy="d2t holds offsets, not ids; " + remedy)
    if not torch.equal(draft.t2d.nonzero().flatten(), ids):
        raise UserError(
            f"{where}: t2d marks other tokens than d2t",
            got=f"{int(draft.t2d.sum())} marked",
            allowed=f"{len(ids)} as in d2t",
            remedy=remedy,
        )


def check_rope(draft: Eagle3Draft, where: str) -> None:
    """Raises UserError for RoPE parameters of the config `where` that give no numbers to turn by."""
    rope = draft.midlayer.rope
    if not bool(torch.isfinite(rope.inv_freq).all()) or not math.isfinite(rope.attention_scaling):
        raise UserError(
            f"{where}: the RoPE parameters give frequencies that are no numbers",
            got=str(draft.config.rope_parameters)[:200],
            remedy="correct theta and scaling to what the draft was trained with",
        )


def _checked(config: DraftConfig, wiring: Wiring, folder: Path) -> Eagle3Draft:
    draft = filled(config, _read_tensors(config, folder))
    for file in weight_files(folder):
        wiring.require_hash(metadata_of(file).get(WIRING_HASH), str(file), str(folder / WIRING))
    check_vocab_map(draft, str(folder))
    check_rope(draft, str(folder / CONFIG))
    require_match(wiring, WIRING, Wiring(**draft_wiring_fields(draft)), f"{CONFIG} and {WEIGHTS}")
    return draft


def filled(config: DraftConfig, tensors: Mapping[str, torch.Tensor]) -> Eagle3Draft:
    """A draft that holds these tensors, each in its own dtype; they must be all that it has, and no others."""
    draft = Eagle3Draft(config)
    draft.load_state_dict(tensors, assign=True)
    return draft


def wanted_shapes(config: DraftConfig, where: str) -> dict[str, torch.Size]:
    """The tensors that a draft of this config has. Raises UserError if there can be no such draft; takes no memory."""
    try:
        with torch.device("meta"):
            return {name: tensor.shape for name, tensor in Eagle3Draft(config).state_dict().items()}
    except Exception as error:  # transformers' layers complain of odd sizes and names in many ways
        raise UserError(
            f"no draft can be made from {where}",
            got=f"{type(error).__name__}: {error}",
            remedy="use the config.json that was saved with the weights",
        ) from error


def _read_tensors(config: DraftConfig, folder: Path) -> dict[str, torch.Tensor]:
    """The draft's tensors. What the file holds is compared with the config before memory is taken for either."""
    wanted = wanted_shapes(config, str(folder / CONFIG))
    tensors = read_tensors(folder)
    missing, spare = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    if missing or spare:
        raise UserError(
            f"the weights of {folder} do not fit its config.json",
            got=f"missing {in_words(missing)}; unread {in_words(spare)}",
            remedy="use the config.json that was saved with these weights",
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise UserError(
                f"{folder}: {name} has another shape than config.json says",
                got=list(tensors[name].shape),
                allowed=list(shape),
                remedy="use the config.json that was saved with these weights",
            )
        allowed = _DTYPES.get(name, _FLOATS)
        if tensors[name].dtype not in allowed:
            raise UserError(f"{folder}: {name} has another type of numbers", got=tensors[name].dtype, allowed=", ".join(map(str, allowed)))
        if tensors[name].is_floating_point() and not bool(torch.isfinite(tensors[name]).all()):
            raise UserError(f"{folder}: {name} holds NaN or infinity", remedy="the training diverged or the file is damaged")
    return tensors


def _check_sizes(config: DraftConfig, wiring: Wiring, target: Target, folder: Path) -> None:
    if config.target_hidden_size != target.hidden_size or config.vocab_size != target.vocab_size:
        raise UserError(
            f"the draft {folder} was made for another target",
            got=f"target hidden size {config.target_hidden_size}, vocabulary {config.vocab_size}",
            allowed=f"{target.name} has hidden size {target.hidden_size}, vocabulary {target.vocab_size}",
            remedy="use the target that the draft was trained for",
        )
    _check_taps(config, wiring, folder)


def _check_taps(config: DraftConfig, wiring: Wiring, folder: Path) -> None:
    if wiring.taps and len(wiring.taps) != config.num_taps:
        raise UserError(
            f"{folder}: config and wiring disagree on the taps",
            got=f"num_taps {config.num_taps}",
            allowed=[str(tap) for tap in wiring.taps],
        )


def _stored(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.detach().to("cpu", dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype).contiguous()
