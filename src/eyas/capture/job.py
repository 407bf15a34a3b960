"""What a capture is asked for, what it reports, and the dump's header, which is settled before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.capture.forward import FINAL
from eyas.capture.plan import Corpus
from eyas.capture.teacher import TeacherCheck
from eyas.data.store import Plan
from eyas.data.store_writer import DumpHeader
from eyas.errors import UserError
from eyas.progress import counted
from eyas.provenance import provenance, versions
from eyas.taps import Tap, format_taps
from eyas.targets.describe import loaded_wiring
from eyas.targets.devices import dtype_name
from eyas.targets.target import Target
from eyas.wiring import Wiring

DEFAULT_BATCH_TOKENS = 4096
SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class CaptureSettings:
    """`taps` in the order of the draft's fc; `teacher` is the state that labels are made of. `command` is recorded.

    `packed` lays the texts of a batch behind one another in one row, where they would else be padded to the longest.
    """

    taps: tuple[Tap, ...]
    teacher: Tap = FINAL
    max_batch_tokens: int = DEFAULT_BATCH_TOKENS
    max_samples: int | None = None
    allow_wrong_teacher: bool = False
    packed: bool = False
    shard_bytes: int = SHARD_BYTES
    command: str = "eyas capture"

    def __post_init__(self) -> None:
        for name, value in (("--batch-tokens", self.max_batch_tokens), ("--max-samples", self.max_samples)):
            if value is not None and value < 1:
                raise UserError(f"{name} is out of range", got=value, allowed="1 or more")


@dataclass(frozen=True)
class CaptureReport:
    """What a capture did. `seconds` and the rate are of this run, without the shards that were there already."""

    out: Path
    num_samples: int
    num_tokens: int
    num_scored_rows: int
    num_bytes: int
    num_shards: int
    num_shards_found: int
    seconds: float
    tokens_per_second: float | None
    teacher_check: TeacherCheck
    wrong_teacher: bool
    wiring: Wiring

    @staticmethod
    def of(out: Path, manifest: Mapping[str, Any], num_found: int, seconds: float, check: TeacherCheck) -> CaptureReport:
        """From a finished dump's manifest, of whose shards `num_found` were there before."""
        num_new = sum(shard["num_tokens"] for shard in manifest["shards"][num_found:])
        return CaptureReport(
            out=out,
            num_samples=manifest["num_samples"],
            num_tokens=manifest["num_tokens"],
            num_scored_rows=manifest["num_scored_rows"],
            num_bytes=sum(shard["bytes"] for shard in manifest["shards"]),
            num_shards=len(manifest["shards"]),
            num_shards_found=num_found,
            seconds=seconds,
            tokens_per_second=num_new / seconds if num_new else None,
            teacher_check=check,
            wrong_teacher=manifest["wrong_teacher"],
            wiring=Wiring.from_json(manifest["wiring"], str(out)),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "taps": [str(tap) for tap in self.wiring.taps],
            "teacher": str(self.wiring.teacher),
            "dtype": self.wiring.states_dtype,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
            "num_scored_rows": self.num_scored_rows,
            "bytes": self.num_bytes,
            "shards": self.num_shards,
            "shards_found": self.num_shards_found,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "teacher_check": self.teacher_check.to_json(),
            "wrong_teacher": self.wrong_teacher,
            "wiring_hash": self.wiring.hash(),
        }

    def text(self) -> str:
        """In words, for people."""
        rate = "" if self.tokens_per_second is None else f", {self.tokens_per_second:,.0f} tokens a second"
        found = f", {self.num_shards_found} of them there already" if self.num_shards_found else ""
        check = self.teacher_check
        right = f"gives the target's own token in {check.agreeing:,} of {check.checked:,} rows, {check.near_ties:,} ties"
        return "\n".join(
            [
                f"dump written to {self.out}",
                f"{counted(self.num_samples, 'sample')}, {self.num_tokens:,} tokens, {counted(self.num_scored_rows, 'row')} to learn from",
                f"{self.num_bytes / 1e6:,.1f} MB in {counted(self.num_shards, 'shard')}{found}",
                f"states {format_taps(self.wiring.taps)} in {self.wiring.states_dtype}; {self.seconds:,.1f} s{rate}",
                f"teacher {self.wiring.teacher}: {right}" + (", so it is WRONG" if self.wrong_teacher else ""),
            ]
        )


def bytes_per_token(target: Target, num_taps: int) -> int:
    """States at the taps and the teacher, ids, mask and the target's own token."""
    return (num_taps + 1) * target.hidden_size * torch.finfo(target.dtype).bits // 8 + 9


def dump_header(target: Target, corpus: Corpus, settings: CaptureSettings, plan: Plan, trace_hash: str | None) -> DumpHeader:
    wiring = loaded_wiring(target).replace(
        taps=settings.taps,
        trace_hash=trace_hash,
        states_dtype=dtype_name(target.dtype),
        teacher=settings.teacher,
        teacher_norm_applied=True,
        corpus_hash=corpus.corpus_hash,
        chat_template_hash=corpus.chat_template_hash,
    )
    return DumpHeader(
        wiring=wiring,
        sample_ids=tuple(text.id for text in corpus.texts),
        lengths=corpus.lengths,
        validation=tuple(range(corpus.num_training, len(corpus.texts))),
        num_scored_rows=sum(text.num_scored_rows for text in corpus.texts),
        max_batch_tokens=settings.max_batch_tokens,
        plan=plan,
        settings=_pinned(target, corpus, settings),
        provenance=provenance(dtype=dtype_name(target.dtype), device=target.device.type, command=settings.command),
    )


def _pinned(target: Target, corpus: Corpus, settings: CaptureSettings) -> dict[str, Any]:
    """What must be the same when a killed run is resumed, or shards of two kinds would stand side by side."""
    return {
        **asked_for(settings, target.device, target.dtype),
        "target": target.name,
        "target_layers": target.num_layers,
        "target_hidden_size": target.hidden_size,
        "tokenizer": target.tokenizer_hash,
        "texts": corpus.hash(),
        "torch_version": versions()["torch"],
        "transformers_version": versions()["transformers"],
    }


def asked_for(settings: CaptureSettings, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The part of a dump's settings that is known before a target is loaded."""
    return {
        "taps": format_taps(settings.taps),
        "teacher": str(settings.teacher),
        "dtype": dtype_name(dtype),
        "device": device.type,
        "batch_tokens": settings.max_batch_tokens,
        "shard_bytes": settings.shard_bytes,
        "packed": settings.packed,
    }


def check_request(target: Target, corpus: Corpus, settings: CaptureSettings) -> None:
    """Raises UserError for taps that the target lacks, texts that it cannot read, or another tokenizer than the texts'."""
    for tap in (*settings.taps, settings.teacher):
        tap.check(target.num_layers)
    corpus.require_tokenizer(target.tokenizer_hash)
    corpus.check(target.vocab_size, target.max_positions)
