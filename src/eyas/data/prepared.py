"""A prepared folder: rendered chats, split into training and validation, ready for capture.

prepared.json         counts, hashes, sources, skipped chats with reasons
tokens.safetensors    for each split: SPLIT.token_ids i32 [N], SPLIT.loss_mask u8 [N], SPLIT.offsets i64 [n+1]
ids.json              for each split: the chats' ids in order
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eyas.data.render import Tokens
from eyas.errors import UserError
from eyas.files import read_json, sha256_file, write_json

PREPARED_FORMAT = 1
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Prepared:
    """`info` is prepared.json: tokenizer_hash, chat_template_hash, corpus_hash, stop_ids, counts, sources, skipped."""

    train: list[Tokens]
    validation: list[Tokens]
    info: dict[str, Any]


def corpus_hash(samples: Iterable[Tokens]) -> str:
    """Over ids and masks, in order: equal iff a draft would learn from the same rows."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(torch.tensor(sample.token_ids, dtype=torch.int32).numpy().tobytes())
        digest.update(bytes(sample.loss_mask) + b"/")
    return digest.hexdigest()


def write_prepared(folder: Path, splits: dict[str, Sequence[Tokens]], info: dict[str, Any]) -> None:
    """Write into an existing, empty folder."""
    tensors = {}
    for name, samples in splits.items():
        offsets = [0]
        for sample in samples:
            offsets.append(offsets[-1] + len(sample.token_ids))
        tensors[f"{name}.token_ids"] = _joined([sample.token_ids for sample in samples], torch.int32)
        tensors[f"{name}.loss_mask"] = _joined([sample.loss_mask for sample in samples], torch.uint8)
        tensors[f"{name}.offsets"] = torch.tensor(offsets, dtype=torch.int64)
    save_file(tensors, folder / "tokens.safetensors")
    write_json(folder / "ids.json", {name: [sample.id for sample in samples] for name, samples in splits.items()})
    write_json(
        folder / "prepared.json",
        {"prepared_format": PREPARED_FORMAT, "tokens_sha256": sha256_file(folder / "tokens.safetensors"), **info},
    )


def read_prepared(path: Path) -> Prepared:
    """Raises UserError if the folder is not a prepared one, of another format, or damaged."""
    info = read_json(path / "prepared.json", "prepared data (eyas data prepare writes it)")
    if info.get("prepared_format") != PREPARED_FORMAT:
        raise UserError(f"{path}: prepared data of an unknown format", got=info.get("prepared_format"), allowed=PREPARED_FORMAT)
    tokens = path / "tokens.safetensors"
    if not tokens.is_file() or sha256_file(tokens) != info.get("tokens_sha256"):
        raise UserError(f"{tokens} is missing or damaged", remedy="copy the folder again, or remove it and run eyas data prepare again")
    ids = read_json(path / "ids.json", "the prepared chats' ids")
    remedy = "copy the folder again, or remove it and run eyas data prepare again"
    missing = [name for name in ("tokenizer_hash", "chat_template_hash", "corpus_hash") if not isinstance(info.get(name), str)]
    if missing:
        raise UserError(f"{path / 'prepared.json'} lacks fields, or they are not texts", got=", ".join(missing), remedy=remedy)
    try:
        tensors = load_file(tokens)
        splits = [_samples(tensors, name, ids[name]) for name in SPLITS]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: ids.json and tokens.safetensors do not fit together", got=str(error), remedy=remedy) from error
    return Prepared(splits[0], splits[1], info)


def _samples(tensors: dict[str, torch.Tensor], name: str, ids: list[str]) -> list[Tokens]:
    token_ids, loss_mask = tensors[f"{name}.token_ids"], tensors[f"{name}.loss_mask"].bool()
    offsets = tensors[f"{name}.offsets"].tolist()
    spans = zip(offsets[:-1], offsets[1:], ids, strict=True)
    return [Tokens(token_ids[start:end].tolist(), loss_mask[start:end].tolist(), chat_id).packed() for start, end, chat_id in spans]


def _joined(parts: Sequence[Sequence[int]], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=dtype), *(torch.tensor(part, dtype=dtype) for part in parts)])
