"""The first pass over a foreign dump: what the header of ours must know before a state is written, and that it can be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.errors import UserError
from eyas.formats.dumps.sample import DumpFormat, ForeignSample
from eyas.targets.devices import DTYPES


@dataclass(frozen=True)
class IndexedText:
    """Where one text stands, and what the header needs of it."""

    file: Path
    number: int
    id: str
    length: int
    num_scored_rows: int
    answer_ids: torch.Tensor


def index_texts(fmt: DumpFormat, files: list[Path], vocab_size: int) -> list[IndexedText]:
    """One pass over everything: lengths, masks and names, that values are finite, and that all texts have the same slots."""
    texts: list[IndexedText] = []
    shape: tuple[Any, ...] | None = None
    for file in files:
        for number, sample in enumerate(fmt.read(file)):
            _check_values(sample, file, vocab_size)
            mask = answer_mask(sample)
            found = (tuple(sample.states.shape[1:]), sample.states.dtype, sample.last is None, sample.loss_mask is None)
            if shape not in (None, found):
                raise UserError(f"{file} has other states than the files before it", got=found, allowed=shape)
            shape = found
            rows = int((mask[1:-1] & mask[2:]).sum())
            name = sample.id.encode("utf-8", "backslashreplace").decode()  # a file's name may be no text
            texts.append(IndexedText(file, number, name, len(sample.token_ids), rows, sample.token_ids[mask].int()))
    if len({text.id for text in texts}) != len(texts):
        texts = [IndexedText(t.file, t.number, f"{n}/{t.id}", t.length, t.num_scored_rows, t.answer_ids) for n, t in enumerate(texts)]
    if not any(text.num_scored_rows for text in texts):
        raise UserError(f"{files[0].parent}: no text has two answer tokens in a row: nothing to train on")
    return texts


def _check_values(sample: ForeignSample, file: Path, vocab_size: int) -> None:
    if int(sample.token_ids.min()) < 0 or int(sample.token_ids.max()) >= vocab_size:
        raise UserError(
            f"{file}: the token ids are not the target's",
            got=f"{int(sample.token_ids.min())} to {int(sample.token_ids.max())}",
            allowed=f"0 to {vocab_size - 1}",
        )
    for what, state in (("the taps' states", sample.states), ("the labels' state", sample.last)):
        if state is not None and (state.dtype not in DTYPES.values() or 0 in state.shape):
            raise UserError(
                f"{file}: {what} are of a shape or dtype that is not supported",
                got=f"{state.dtype} {list(state.shape)}",
                allowed=", ".join(DTYPES),
            )
        if state is not None and not bool(torch.isfinite(state).all()):
            raise UserError(
                f"{file}: {what} of {sample.id} are not finite", remedy="the target overflowed: make the dump again in bf16 or fp32"
            )


def answer_mask(sample: ForeignSample) -> torch.Tensor:
    return torch.ones(len(sample.token_ids), dtype=torch.bool) if sample.loss_mask is None else sample.loss_mask
