"""Writing a dump shard by shard, so that a killed run goes on and leaves the same bits. See `store` for the layout."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eyas.data.store import COUNTS, FORMAT, MANIFEST, TRACE, Plan, Sample, check_files, is_dump, read_manifest, shard_name, shard_samples
from eyas.errors import UserError
from eyas.files import atomic_path, check_folder_writable, exclusive, sha256_file, write_text, writing
from eyas.wiring import WIRING_HASH, Wiring


@dataclass(frozen=True)
class DumpHeader:
    """Everything about a dump that is known, and fixed, before the first state is computed.

    `settings` holds what a resumed run must share with the first one; `validation` numbers the samples kept from training.
    """

    wiring: Wiring
    sample_ids: tuple[str, ...]
    lengths: tuple[int, ...]
    validation: tuple[int, ...]
    num_scored_rows: int
    max_batch_tokens: int
    plan: Plan
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def to_manifest(self) -> dict[str, Any]:
        return {
            "dump_format": FORMAT,
            "complete": False,
            "wiring": self.wiring.to_json(),
            "num_samples": len(self.lengths),
            "num_tokens": sum(self.lengths),
            "num_scored_rows": self.num_scored_rows,
            "token_counts": COUNTS,
            "settings": dict(self.settings),
            "provenance": dict(self.provenance),
            "samples": {"ids": list(self.sample_ids), "lengths": list(self.lengths), "validation": list(self.validation)},
            "batch_plan": {
                "max_batch_tokens": self.max_batch_tokens,
                "padding": "none" if self.settings.get("packed") else "right",
                "shards": self.plan,
            },
            "shards": [],
        }


class DumpWriter:
    """Writes a dump shard by shard, and goes on with one that was interrupted. Use as a context manager.

    Raises:
        UserError: the folder holds something else, a dump made with other settings (with both values), or another
            process is writing it; the disk is full.
    """

    def __init__(self, folder: Path, header: DumpHeader, token_counts: torch.Tensor) -> None:
        self.folder, self._header, self._token_counts = folder, header, token_counts
        self._held = contextlib.ExitStack()
        self.manifest = header.to_manifest()

    def __enter__(self) -> DumpWriter:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            opened.enter_context(exclusive(self.folder))  # first: else another process might begin a dump behind the check
            check_resumable(self.folder, self._header)
            for leftover in self.folder.glob(".*.tmp"):  # of a killed run: nobody else writes here while the folder is held
                leftover.unlink()
            if is_dump(self.folder):
                self.manifest = read_manifest(self.folder)
            else:
                self._write_manifest()
            if not (self.folder / COUNTS).is_file():
                _save({"counts": self._token_counts.long()}, self.folder / COUNTS)
            self._held = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    @property
    def trace_path(self) -> Path:
        return self.folder / TRACE

    @property
    def next_shard(self) -> int:
        """The number of the first shard that is not there yet."""
        return len(self.manifest["shards"])

    def write_shard(self, samples: Sequence[Sample], teacher_check: Mapping[str, int], layout: Mapping[str, Any] | None = None) -> None:
        """Write the next shard: `samples` in the plan's order. Shapes, lengths and finiteness are checked first.

        `layout`, over which ranks the forward was spread, is recorded: states of two layouts are the same up to rounding.
        """
        number = self.next_shard
        wanted = shard_samples(self._header.plan[number])
        for index, sample in zip(wanted, samples, strict=True):
            _check_sample(sample, self._header, index)
        name = shard_name(number)
        _save(_shard_tensors(samples), self.folder / name, {WIRING_HASH: self._header.wiring.hash()})
        path = self.folder / name
        record = {
            "file": name,
            "sha256": sha256_file(path),
            "bytes": path.stat().st_size,
            "num_samples": len(samples),
            "num_tokens": sum(len(sample.token_ids) for sample in samples),
            "teacher_check": dict(teacher_check),
        } | ({} if layout is None else {"layout": dict(layout)})
        self.manifest["shards"].append(record)
        self._write_manifest()

    def finish(self, teacher_check: Mapping[str, Any], wrong_teacher: bool) -> None:
        """Mark the dump as whole. Every planned shard must be there, and the trace."""
        assert self.next_shard == len(self._header.plan), "finish before the last shard"
        if not self.trace_path.is_file():
            raise UserError(f"the dump has no trace: {self.trace_path}", remedy="remove the dump and capture it again")
        wiring = self._header.wiring.replace(teacher_verified=not wrong_teacher)
        self.manifest |= {
            "complete": True,
            "wiring": wiring.to_json(),
            "teacher_check": dict(teacher_check),
            "wrong_teacher": wrong_teacher,
        }
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_text(self.folder / MANIFEST, json.dumps(self.manifest, ensure_ascii=False) + "\n")


def check_place(folder: Path, settings: Mapping[str, Any]) -> None:
    """Before anything is computed: raises UserError unless a dump with these settings, among others, can be written or gone on with."""
    if is_dump(folder):
        _require_settings(folder, read_manifest(folder), settings)
    else:
        _refuse_other_things(folder)
    check_folder_writable(folder)


def _require_settings(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    begun = there.get("settings", {})
    differing = [name for name in wanted if begun.get(name) != wanted[name]]
    if differing:
        raise UserError(
            f"{folder} was begun with other settings",
            got=", ".join(f"{name.replace('_', ' ')} = {wanted[name]}" for name in differing),
            allowed=", ".join(f"{name.replace('_', ' ')} = {begun.get(name)}" for name in differing),
            remedy="resume with the settings it was begun with, or give another --out",
        )


def _refuse_other_things(folder: Path) -> None:
    """What a killed run left before its manifest was in place is no hindrance."""
    if not folder.exists():
        return
    if not folder.is_dir() or not all(path.name.startswith(".") and path.name.endswith(".tmp") for path in folder.iterdir()):
        raise UserError(f"{folder} exists and is not a dump", remedy="give another --out, or remove it first")


def check_resumable(folder: Path, header: DumpHeader) -> int:
    """How many shards of exactly this dump stand in `folder` already: 0 for a folder that is new or empty.

    Raises UserError if the folder holds anything else, or a dump with other settings or another plan.
    """
    if not is_dump(folder):
        _refuse_other_things(folder)
        return 0
    there, wanted = read_manifest(folder), header.to_manifest()
    _require_settings(folder, there, wanted["settings"])
    for name in ("samples", "batch_plan"):
        if there.get(name) != wanted[name]:
            raise UserError(
                f"{folder} was begun with other {name.replace('_', ' ')}s", remedy="give another --out, or remove the folder first"
            )
    check_files(folder, there["shards"])
    return len(there["shards"])


def _check_sample(sample: Sample, header: DumpHeader, index: int) -> None:
    name, length = header.sample_ids[index], header.lengths[index]
    hidden = header.wiring.target_hidden_size or 0
    shapes = [tuple(part.shape) for part in (sample.token_ids, sample.loss_mask, sample.states, sample.teacher, sample.top1)]
    wanted = [(length,), (length,), (length, hidden * len(header.wiring.taps)), (length, hidden), (length,)]
    if shapes != wanted:
        raise UserError(f"the states of sample {name} have other lengths than its tokens", got=shapes, allowed=wanted)
    for what, state in (("state", sample.states), ("teacher state", sample.teacher)):
        bad = (~torch.isfinite(state)).any(-1).nonzero().flatten().tolist()
        if bad:
            raise UserError(
                f"sample {name} has a {what} that is not finite",
                got=f"NaN or infinity at position {bad[0]} ({len(bad)} positions)",
                remedy="the target overflows in this dtype: try --dtype bf16 or fp32",
            )


def _shard_tensors(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([0, *(len(sample.token_ids) for sample in samples)])
    return {
        "token_ids": torch.cat([sample.token_ids for sample in samples]).int(),
        "loss_mask": torch.cat([sample.loss_mask for sample in samples]).to(torch.uint8),
        "offsets": lengths.cumsum(0),
        "states": torch.cat([sample.states for sample in samples]),
        "teacher": torch.cat([sample.teacher for sample in samples]),
        "top1": torch.cat([sample.top1 for sample in samples]).int(),
    }


def _save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata)
