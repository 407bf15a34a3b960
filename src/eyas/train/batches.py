"""Which samples form which batch, and a batch as padded tensors.

The order is a pure function of (seed, step), so a resumed run reads on where the killed one stopped without any
reader state. Samples of like length are batched together; padding is at the end of a row.

Legend: B samples, T positions, R scored rows (padded), S = n·H_target, H hidden size.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.data.store import Dump

_WINDOW = 16  # batches whose samples are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Row r of sample b is position row_BR[b, r]; it is real where valid_BR holds.

    teacher_BRH and top1_BR stand at position row + 1: the target's distribution that the draft's step 0 must match,
    and its most likely token. Step k of row r uses entry r + k (see `step_index`).
    """

    token_BT: torch.Tensor
    states_BTS: torch.Tensor
    row_BR: torch.Tensor
    valid_BR: torch.Tensor
    teacher_BRH: torch.Tensor
    top1_BR: torch.Tensor

    @property
    def num_rows(self) -> int:
        return int(self.valid_BR.sum())

    def to_dtype(self, dtype: torch.dtype) -> Batch:
        """The same batch with states and teacher in another dtype."""
        return dataclasses.replace(self, states_BTS=self.states_BTS.to(dtype), teacher_BRH=self.teacher_BRH.to(dtype))

    def step_index(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat indices (into B·R) of the rows that have a step `step`, and of the rows that hold its labels.

        Row r has it if row + step is scored too, with every row in between: it is the r + step'th entry then.
        """
        count = self.row_BR.shape[1]
        if step >= count:
            empty = torch.zeros(0, dtype=torch.long, device=self.row_BR.device)
            return empty, empty
        here, there = slice(0, count - step), slice(step, count)
        kept = self.valid_BR[:, here] & self.valid_BR[:, there] & (self.row_BR[:, there] == self.row_BR[:, here] + step)
        sample, entry = kept.nonzero(as_tuple=True)
        return sample * count + entry, sample * count + entry + step


def scored_rows(loss_mask_T: torch.Tensor) -> torch.Tensor:
    """Rows p for which tokens p+1 and p+2 are both answer tokens."""
    return (loss_mask_T[1:-1] & loss_mask_T[2:]).nonzero().flatten()


def load_batch(dump: Dump, indices: Sequence[int], device: torch.device) -> Batch:
    samples = [dump.sample(index) for index in indices]
    rows = [scored_rows(sample.loss_mask) for sample in samples]
    length, count = max(len(sample.token_ids) for sample in samples), max(1, *(len(row) for row in rows))
    width, hidden = samples[0].states.shape[-1], samples[0].teacher.shape[-1]
    token_BT = torch.zeros(len(samples), length, dtype=torch.long)
    states_BTS = torch.zeros(len(samples), length, width, dtype=samples[0].states.dtype)
    row_BR = torch.zeros(len(samples), count, dtype=torch.long)
    valid_BR = torch.zeros(len(samples), count, dtype=torch.bool)
    teacher_BRH = torch.zeros(len(samples), count, hidden, dtype=samples[0].teacher.dtype)
    top1_BR = torch.zeros(len(samples), count, dtype=torch.long)
    for number, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        token_BT[number, : len(sample.token_ids)] = sample.token_ids
        states_BTS[number, : len(sample.token_ids)] = sample.states
        row_BR[number, : len(row)] = row
        valid_BR[number, : len(row)] = True
        teacher_BRH[number, : len(row)] = sample.teacher[row + 1]
        top1_BR[number, : len(row)] = sample.top1[row + 1]
    return Batch(*(tensor.to(device) for tensor in (token_BT, states_BTS, row_BR, valid_BR, teacher_BRH, top1_BR)))


class BatchOrder:
    """Endless, seeded epochs over `samples`; `at(step)` is the batch of that step."""

    def __init__(self, samples: Sequence[int], lengths: Sequence[int], tokens_per_batch: int, seed: int) -> None:
        self._samples, self._lengths = list(samples), list(lengths)
        self._tokens_per_batch, self._seed = tokens_per_batch, seed
        self._epochs: dict[int, list[list[int]]] = {}

    def at(self, step: int) -> list[int]:
        epoch = 0
        while True:
            batches = self._epoch(epoch)
            if step < len(batches):
                return batches[step]
            step -= len(batches)
            epoch += 1

    @property
    def batches_per_epoch(self) -> int:
        return len(self._epoch(0))

    def _epoch(self, epoch: int) -> list[list[int]]:
        if epoch not in self._epochs:
            self._epochs[epoch] = self._plan(random.Random(f"{self._seed}/{epoch}"))
        return self._epochs[epoch]

    def _plan(self, rng: random.Random) -> list[list[int]]:
        order = list(self._samples)
        rng.shuffle(order)
        mean = max(1, sum(self._lengths[index] for index in order) // len(order))
        window = _WINDOW * max(1, self._tokens_per_batch // mean)
        batches: list[list[int]] = []
        for start in range(0, len(order), window):
            group = sorted(order[start : start + window], key=lambda index: self._lengths[index])
            batches += _cut(group, self._lengths, self._tokens_per_batch)
        rng.shuffle(batches)
        return batches


def _cut(group: Sequence[int], lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Consecutive samples, as many as fit into the budget when padded to the longest."""
    batches: list[list[int]] = [[]]
    for index in group:
        if batches[-1] and lengths[index] * (len(batches[-1]) + 1) > tokens_per_batch:
            batches.append([])
        batches[-1].append(index)
    return batches
