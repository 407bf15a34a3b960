"""Hidden states on disk: a folder of safetensors shards under a manifest that carries the wiring.

    manifest.json             wiring, samples, batch plan, checksums, the teacher's check, what made it
    shard-00000.safetensors   token_ids i32 [N], loss_mask u8 [N], offsets i64 [n+1], states [N, n_taps*H],
                              teacher [N, H] (after the final norm: head(teacher) are logits), top1 i32 [N]
    token_counts.safetensors  counts i64 [V] over the answer tokens of the training samples
    trace.safetensors         the target's fingerprint

Which samples stand in which shard, in which batches they ran and in which order, is fixed in the manifest before the first
shard is written. A shard is the unit of resume: it is there as a whole or not at all, and whoever makes it makes the same bits.

Shapes: N positions of a shard's n samples, T of one sample, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from eyas.errors import UserError
from eyas.files import read_json, sha256_file, sha256_text
from eyas.wiring import WIRING_HASH, Wiring

FORMAT = 1
MANIFEST, TRACE, COUNTS = "manifest.json", "trace.safetensors", "token_counts.safetensors"
_OPEN_SHARDS = 16
_STATE_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_DTYPES = {"token_ids": "I32", "loss_mask": "U8", "offsets": "I64", "top1": "I32"}

Plan = list[list[list[int]]]  # shards of batches of sample numbers


@dataclass(frozen=True)
class Sample:
    """One text. token_ids, loss_mask, top1 [T]; states [T, n_taps*H]; teacher [T, H]; top1[p] is the target's own token after p."""

    token_ids: torch.Tensor
    loss_mask: torch.Tensor
    states: torch.Tensor
    teacher: torch.Tensor
    top1: torch.Tensor


class Dump:
    """A finished dump, for reading. Samples are numbered as they were prepared, training before validation.

    Raises:
        UserError: no dump, an unfinished one, one of another format, or one whose files are missing or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.wiring = Wiring.from_json(self.manifest["wiring"], str(path / MANIFEST))
        self._plan: Plan = self.manifest["batch_plan"]["shards"]
        self._shards: list[dict[str, Any]] = self.manifest["shards"]
        self._place = {index: (n, row) for n, shard in enumerate(self._plan) for row, index in enumerate(shard_samples(shard))}
        self._open: dict[int, Any] = {}
        _check_complete(path, self.manifest)
        check_files(path, self._shards)

    @staticmethod
    def open(path: Path | str) -> Dump:
        return Dump(Path(path))

    @property
    def num_samples(self) -> int:
        return int(self.manifest["num_samples"])

    @property
    def num_tokens(self) -> int:
        return int(self.manifest["num_tokens"])

    @property
    def num_scored_rows(self) -> int:
        return int(self.manifest["num_scored_rows"])

    @property
    def wrong_teacher(self) -> bool:
        return bool(self.manifest["wrong_teacher"]) or self.wiring.teacher_verified is False

    @property
    def trace_file(self) -> Path | None:
        return self.path / TRACE if (self.path / TRACE).is_file() else None

    @cached_property
    def validation(self) -> tuple[int, ...]:
        """The samples that are not to be trained on."""
        return tuple(self.manifest["samples"]["validation"])

    @cached_property
    def training(self) -> tuple[int, ...]:
        kept = set(self.validation)
        return tuple(index for index in range(self.num_samples) if index not in kept)

    @property
    def sample_ids(self) -> list[str]:
        return list(self.manifest["samples"]["ids"])

    def lengths(self) -> list[int]:
        """Positions of every sample, without reading a state."""
        return list(self.manifest["samples"]["lengths"])

    def hash(self) -> str:
        """Equal for dumps with the same contents: the manifest holds the checksum of every shard."""
        return sha256_text((self.path / MANIFEST).read_text(encoding="utf-8"))

    def token_counts(self) -> torch.Tensor:
        """How often each target token [V] stands in an answer of the training samples."""
        try:
            counts = load_file(self.path / COUNTS)["counts"]
        except (OSError, SafetensorError, KeyError) as error:
            raise _damaged(self.path / COUNTS, error) from error
        if len(counts) != self.wiring.target_vocab_size:
            raise UserError(f"{self.path / COUNTS} is of another vocabulary", got=len(counts), allowed=self.wiring.target_vocab_size)
        return counts

    def sample(self, index: int) -> Sample:
        """Read one sample's rows from its shard. Raises UserError if the shard is not what the manifest says."""
        number, row = self._place[index]
        shard = self._shard(number)
        start, end = shard.get_slice("offsets")[row : row + 2].tolist()
        rows = {name: shard.get_slice(name)[start:end] for name in ("token_ids", "loss_mask", "states", "teacher", "top1")}
        return Sample(rows["token_ids"].long(), rows["loss_mask"].bool(), rows["states"], rows["teacher"], rows["top1"].long())

    def verify(self) -> None:
        """Read every byte. Raises UserError for the first shard whose checksum or header is not the manifest's."""
        for number, shard in enumerate(self._shards):
            found = sha256_file(self.path / shard["file"])
            if found != shard["sha256"]:
                raise UserError(
                    f"{self.path / shard['file']} was changed or damaged",
                    got=f"sha256 {found}",
                    allowed=f"sha256 {shard['sha256']}",
                    remedy="copy the shard again from where the dump was made",
                )
            self._shard(number)

    def _shard(self, number: int) -> Any:
        if number not in self._open:
            path = self.path / self._shards[number]["file"]
            try:
                opened = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise _damaged(path, error) from error
            self._check_shard(opened, number, path)
            while len(self._open) >= _OPEN_SHARDS:
                self._open.pop(next(iter(self._open)))
            self._open[number] = opened
        return self._open[number]

    def _check_shard(self, opened: Any, number: int, path: Path) -> None:
        self.wiring.require_hash((opened.metadata() or {}).get(WIRING_HASH), str(path), str(self.path / MANIFEST))
        lengths = self.manifest["samples"]["lengths"]
        hidden, taps = self.wiring.target_hidden_size, len(self.wiring.taps)
        counts = [lengths[index] for index in shard_samples(self._plan[number])]
        total = sum(counts)
        wanted = {
            "token_ids": [total],
            "loss_mask": [total],
            "top1": [total],
            "offsets": [len(counts) + 1],
            "states": [total, taps * (hidden or 0)],
            "teacher": [total, hidden],
        }
        found = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  (not a dict)
        if found != wanted:
            raise UserError(
                f"{path} does not hold what the manifest says", got=found, allowed=wanted, remedy="do not mix shards of several dumps"
            )
        dtypes = {name: opened.get_slice(name).get_dtype() for name in wanted}
        states_dtype = _STATE_DTYPES.get(str(self.wiring.states_dtype))
        if dtypes != _DTYPES | {"states": states_dtype, "teacher": states_dtype}:
            raise UserError(
                f"{path} holds other dtypes than the manifest says", got=dtypes, allowed=f"states in {self.wiring.states_dtype}"
            )
        offsets = opened.get_tensor("offsets").tolist()
        if offsets[0] != 0 or [end - start for start, end in pairwise(offsets)] != counts:
            raise UserError(f"{path}: the samples have other lengths than in the manifest", remedy="do not mix shards of several dumps")


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def shard_samples(shard: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of a planned shard's samples, in the order in which they are written."""
    return [index for batch in shard for index in batch]


def is_dump(path: Path) -> bool:
    """A finished or unfinished dump of ours."""
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UserError(f"dump folder does not exist: {path}", remedy="make one: eyas capture")
    if not is_dump(path):
        held = sorted(item.name for item in path.iterdir())[:5]
        raise UserError(
            f"{path} is not a dump: it has no {MANIFEST}", got=held or "an empty folder", remedy="give the --out of eyas capture"
        )
    manifest = read_json(path / MANIFEST, "the dump's manifest")
    if manifest.get("dump_format") != FORMAT:
        raise UserError(f"{path} is a dump of an unknown format", got=manifest.get("dump_format"), allowed=FORMAT)
    _check_manifest(manifest, path / MANIFEST)
    return manifest


_REMEDY = "the manifest was edited or is damaged: copy it again"
_FIELDS: dict[str, type] = {
    "wiring": dict,
    "num_samples": int,
    "num_tokens": int,
    "num_scored_rows": int,
    "samples": dict,
    "batch_plan": dict,
    "settings": dict,
    "provenance": dict,
    "shards": list,
    "complete": bool,
}
_SHARD_FIELDS: dict[str, type] = {"file": str, "sha256": str, "bytes": int, "num_tokens": int, "teacher_check": dict}


def _check_manifest(manifest: Mapping[str, Any], file: Path) -> None:
    """Everything that is read later is there, of its type, and fits the rest. Raises UserError otherwise."""
    _check_fields(manifest, _FIELDS | ({"wrong_teacher": bool} if manifest.get("complete") else {}), file, "")
    _check_fields(manifest["samples"], {"ids": list, "lengths": list, "validation": list}, file, "samples.")
    _check_fields(manifest["batch_plan"], {"shards": list}, file, "batch_plan.")
    for shard in manifest["shards"]:
        _check_fields(shard, _SHARD_FIELDS, file, "shards.")
    samples, plan, count = manifest["samples"], manifest["batch_plan"]["shards"], manifest["num_samples"]
    nested = all(isinstance(shard, list) and all(isinstance(batch, list) for batch in shard) for shard in plan)
    planned = [index for shard in plan for batch in shard for index in batch] if nested else []
    numbers = [*samples["lengths"], *samples["validation"], *planned]
    if not nested or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise UserError(f"{file}: batch_plan and samples must hold whole numbers", remedy=_REMEDY)
    if sorted(planned) != list(range(count)) or not len(samples["ids"]) == len(samples["lengths"]) == count:
        raise UserError(
            f"{file}: samples and batch_plan do not fit num_samples",
            got=f"{len(samples['ids'])} ids, {len(samples['lengths'])} lengths, {len(planned)} samples planned",
            allowed=f"{count} of each, every sample planned once",
            remedy=_REMEDY,
        )
    if sum(samples["lengths"]) != manifest["num_tokens"] or not set(samples["validation"]) <= set(range(count)):
        raise UserError(f"{file}: lengths or validation do not fit num_tokens and num_samples", remedy=_REMEDY)
    names = [shard["file"] for shard in manifest["shards"]]
    if names != [shard_name(number) for number in range(len(names))] or len(names) > len(plan):
        raise UserError(
            f"{file} lists other shards than planned",
            got=names[:4],
            allowed=f"{shard_name(0)} and so on, {len(plan)} in all",
            remedy=_REMEDY,
        )


def _check_fields(value: Any, fields: Mapping[str, type], file: Path, inside: str) -> None:
    for name, kind in fields.items():
        if not isinstance(value, dict) or name not in value:
            raise UserError(f"{file} lacks {inside}{name}", remedy=_REMEDY)
        if not isinstance(value[name], kind) or (kind is int and isinstance(value[name], bool)):
            raise UserError(f"{file}: {inside}{name} has the wrong type", got=repr(value[name])[:80], allowed=kind.__name__, remedy=_REMEDY)


def _check_complete(path: Path, manifest: Mapping[str, Any]) -> None:
    if not manifest["complete"] or len(manifest["shards"]) != len(manifest["batch_plan"]["shards"]):
        command = manifest.get("provenance", {}).get("command", "eyas capture")
        raise UserError(
            f"{path} is unfinished",
            got=f"{len(manifest['shards'])} of {len(manifest['batch_plan']['shards'])} shards",
            remedy=f"resume it by the command it was begun with, which goes on where it stopped: {command}",
        )


def check_files(path: Path, shards: Sequence[Mapping[str, Any]]) -> None:
    for shard in shards:
        file = path / shard["file"]
        if not file.is_file():
            raise UserError(f"a shard of the dump is missing: {file}", remedy="copy the dump again, whole")
        if file.stat().st_size != shard["bytes"]:
            raise UserError(
                f"a shard of the dump is cut short or was changed: {file}",
                got=f"{file.stat().st_size} bytes",
                allowed=f"{shard['bytes']} bytes",
                remedy="copy it again",
            )


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is missing or damaged",
        got=(str(error).splitlines() or [type(error).__name__])[0],
        remedy="copy it again from where the dump was made",
    )
