"""Capturing a corpus to a dump: estimate, refuse, run, check, and go on where a killed run stopped.

Nothing is written before the plan fits the disk and the first batch has shown that the teacher is right. Afterwards
every finished shard stands for itself; the same command makes the rest, with the same bits.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from eyas.capture.forward import capture_batch
from eyas.capture.job import CaptureReport, CaptureSettings, bytes_per_token, check_request, dump_header
from eyas.capture.parallel.agree import require_agreement
from eyas.capture.parallel.writer import SharedWriter
from eyas.capture.plan import Corpus, make_plan, padded_tokens
from eyas.capture.teacher import TeacherCheck, check_teacher, check_whole_forward, refuse_wrong_teacher
from eyas.capture.trace import SAME_WEIGHTS, Trace, check_identity, record_trace
from eyas.data.store import TRACE, Plan, Sample
from eyas.data.store_writer import DumpHeader, check_resumable
from eyas.errors import UserError, WiringError
from eyas.progress import Progress, console, counted
from eyas.targets.target import Target

_CHECK_EVERY = 8  # rows of a batch after a shard's first, whose rows are all checked
_WHOLE_FORWARD_TOKENS = 256


def capture_to_dump(target: Target, corpus: Corpus, settings: CaptureSettings, out: Path) -> CaptureReport:
    """Write the dump `out`, or what is missing of it.

    Raises:
        UserError: taps that the target lacks, texts that it cannot read, another tokenizer than the texts were made
            with, a disk that would not hold the dump, a teacher that gives other tokens than the target, a folder in use.
    """
    return _Run(target, corpus.first(settings.max_samples), settings, out).run()


class _Run:
    def __init__(self, target: Target, corpus: Corpus, settings: CaptureSettings, out: Path) -> None:
        check_request(target, corpus, settings)
        self.target, self.corpus, self.settings, self.out = target, corpus, settings, out
        self.lengths = corpus.lengths
        self.bytes_per_token = bytes_per_token(target, len(settings.taps))
        self.plan: Plan = make_plan(self.lengths, settings.max_batch_tokens, max(1, settings.shard_bytes // self.bytes_per_token))
        self.check = TeacherCheck()

    def run(self) -> CaptureReport:
        """On every rank of the target's layout alike; rank 0 reads and writes the folder for all."""
        layout = self.target.layout
        num_found = layout.on_rank_0(lambda: self._found())
        trace = self._trace()
        self._rehearse([batch for shard in self.plan[num_found:] for batch in shard])
        started = time.perf_counter()
        with SharedWriter(layout, self.out, self._header(trace.hash()), self.corpus.token_counts(self.target.vocab_size)) as writer:
            writer.keep_trace(trace)
            for shard in writer.manifest["shards"]:
                self.check += TeacherCheck(**shard["teacher_check"])
            self._write_shards(writer)
            self._require_teacher(self.check)
            writer.finish(self.check.to_json(), wrong_teacher=not self.check.passed)
            manifest = writer.finished()
        return CaptureReport.of(self.out, manifest, num_found, time.perf_counter() - started, self.check)

    def _found(self) -> int:
        """How many shards are there already; says what is to be done, and refuses what cannot be."""
        num_found = check_resumable(self.out, self._header(trace_hash=None))
        self._announce(num_found)
        return num_found

    def _header(self, trace_hash: str | None) -> DumpHeader:
        return dump_header(self.target, self.corpus, self.settings, self.plan, trace_hash)

    # -- before anything is written ------------------------------------------------------------------------------

    def _announce(self, num_found: int) -> None:
        """Say what is to be done, and refuse what the disk cannot hold."""
        left = sum(self.lengths[index] for shard in self.plan[num_found:] for batch in shard for index in batch)
        need = left * self.bytes_per_token
        existing = next(folder for folder in (self.out, *self.out.resolve().parents) if folder.is_dir())
        free = shutil.disk_usage(existing).free
        console.print(
            f"{counted(len(self.lengths), 'sample')}, {sum(self.lengths):,} tokens, {counted(len(self.plan), 'shard')}"
            + (f" ({num_found} there already)" if num_found else "")
            + f"; {_size(need)} to write, {_size(free)} free"
        )
        if need > free:
            fitting = max(1, int(len(self.lengths) * 0.9 * free / need))
            raise UserError(
                f"the dump would not fit the disk of {self.out}",
                got=f"{_size(need)} for {left:,} tokens of {len(self.settings.taps)} taps and the teacher",
                allowed=f"{_size(free)} free",
                remedy=f"free disk space, choose another --out, or capture fewer: --max-samples {fitting}",
            )

    def _trace(self) -> Trace:
        """The trace of the run that began the dump, if this target is the same to the bit; else a new one."""
        path = self.out / TRACE
        trace = self.target.layout.on_rank_0(lambda: Trace.load(path) if path.is_file() else None)
        if trace is None:
            return record_trace(self.target)
        report = check_identity(self.target, trace, f"the dump {self.out}")
        if max(report.distance, report.median_distance) > SAME_WEIGHTS:  # a rounded copy: right for training, wrong beside these shards
            raise WiringError(
                f"{self.out} was begun with other weights of this target", got=report.text(), remedy="resume with the same copy"
            )
        return trace

    def _rehearse(self, todo: list[list[int]]) -> None:
        """Run the first batch that is missing: is the teacher right, and how long will all of it take?"""
        if not todo:
            return
        batch = todo[0]
        check_whole_forward(self.target, list(self.corpus.texts[batch[-1]].token_ids[:_WHOLE_FORWARD_TOKENS]))
        started = time.perf_counter()
        _, check = self._batch(batch, every=1)
        seconds = time.perf_counter() - started
        self._require_teacher(check)
        rate = padded_tokens(batch, self.lengths) / seconds
        console.print(f"about {_duration(sum(padded_tokens(batch, self.lengths) for batch in todo) / rate)} at the rate of the first batch")

    # -- the work ------------------------------------------------------------------------------------------------

    def _write_shards(self, writer: SharedWriter) -> None:
        left = self.plan[writer.next_shard :]
        with Progress("capture", sum(self.lengths[index] for shard in left for batch in shard for index in batch), "tokens") as progress:
            for shard in left:
                samples: list[Sample] = []
                shard_check = TeacherCheck()
                for number, batch in enumerate(shard):
                    found, check = self._batch(batch, every=1 if number == 0 else _CHECK_EVERY)
                    samples += found
                    shard_check += check
                    progress.advance(sum(self.lengths[index] for index in batch))
                self._require_teacher(shard_check)
                writer.write_shard(samples, shard_check.counts())
                self.check += shard_check

    @torch.no_grad()
    def _batch(self, batch: Sequence[int], every: int) -> tuple[list[Sample], TeacherCheck]:
        """Capture one planned batch, and check one row in `every`. Samples are made where they will be written."""
        target, settings = self.target, self.settings
        texts = [self.corpus.texts[index] for index in batch]
        extra = settings.teacher not in settings.taps and not settings.teacher.is_final
        taps = (*settings.taps, settings.teacher) if extra else settings.taps
        captured = capture_batch(target, [text.token_ids for text in texts], taps, packed=settings.packed)
        width = len(settings.taps) * target.hidden_size
        teachers = [self._teacher(one.states, one.final) for one in captured]
        final_NH, top1_N = torch.cat([one.final for one in captured]), torch.cat([one.top1 for one in captured])
        require_agreement(target.layout, "states", [*(one.states for one in captured), final_NH, top1_N])
        check = check_teacher(target, torch.cat(teachers)[::every], final_NH[::every], top1_N[::every])
        if not target.layout.writes:
            return [], check
        samples = [
            Sample(
                token_ids=torch.tensor(text.token_ids),
                loss_mask=torch.tensor(text.loss_mask, dtype=torch.bool),
                states=one.states[:, :width].cpu(),
                teacher=teacher.cpu(),
                top1=one.top1.cpu(),
            )
            for text, one, teacher in zip(texts, captured, teachers, strict=True)
        ]
        return samples, check

    def _teacher(self, states_TnH: torch.Tensor, final_TH: torch.Tensor) -> torch.Tensor:
        """The teacher's state as lm_head wants it: every tap but `final` stands before the norm."""
        if self.settings.teacher.is_final:
            return final_TH
        taps = self.settings.taps
        slot = taps.index(self.settings.teacher) if self.settings.teacher in taps else len(taps)
        return self.target.norm(states_TnH.split(self.target.hidden_size, dim=-1)[slot])

    def _require_teacher(self, check: TeacherCheck) -> None:
        if not check.passed and not self.settings.allow_wrong_teacher and check.checked:
            raise refuse_wrong_teacher(check, self.settings.teacher, self.target.num_layers)


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
