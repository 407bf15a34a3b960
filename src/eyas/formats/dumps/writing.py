"""Writing a verified foreign dump into Eyas's store, in the order of its files; a killed import goes on like a capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from eyas.capture.forward import capture_batch, own_top1
from eyas.capture.job import SHARD_BYTES
from eyas.capture.teacher import TeacherCheck
from eyas.capture.trace import record_trace
from eyas.data.store import Plan, Sample
from eyas.data.store_writer import DumpHeader, DumpWriter
from eyas.files import sha256_file, sha256_text
from eyas.formats.dumps.index import IndexedText, answer_mask
from eyas.formats.dumps.sample import DumpFormat, ForeignSample
from eyas.formats.dumps.verify import Verified, teacher_state, with_first_token
from eyas.progress import Progress
from eyas.provenance import provenance
from eyas.taps import Tap, format_taps
from eyas.targets.describe import loaded_wiring
from eyas.targets.target import Target

_VALIDATION_SHARE = 20  # one text in so many is kept from training


def dump_header(target: Target, fmt: DumpFormat, files: list[Path], texts: list[IndexedText], verified: Verified, dtype: str) -> DumpHeader:
    hashes = sha256_text("".join(sha256_file(file) for file in files))
    wiring = loaded_wiring(target).replace(
        taps=verified.taps,
        states_dtype=dtype,
        teacher=Tap(None),
        teacher_norm_applied=True,
        corpus_hash=hashes,
        chat_template_hash=None,  # the files do not say which template made their texts
    )
    kept = len(texts) // _VALIDATION_SHARE
    settings = {"source": fmt.name, "files": hashes, "taps": format_taps(verified.taps), "target": target.name, "dtype": dtype}
    return DumpHeader(
        wiring=wiring,
        sample_ids=tuple(text.id for text in texts),
        lengths=tuple(text.length for text in texts),
        validation=tuple(range(len(texts) - kept, len(texts))),
        num_scored_rows=sum(text.num_scored_rows for text in texts),
        max_batch_tokens=max(text.length for text in texts),
        plan=_plan(texts, max(1, SHARD_BYTES // (4 * target.hidden_size * (len(verified.taps) + 1)))),
        settings=settings,
        provenance=provenance(dtype=dtype, device=target.device.type, command=f"eyas import (a dump of {fmt.name})"),
    )


def _plan(texts: list[IndexedText], shard_tokens: int) -> Plan:
    """Texts in the order of their files, so that each file is read once."""
    shards: Plan = [[]]
    held = 0
    for number, text in enumerate(texts):
        if held >= shard_tokens:
            shards.append([])
            held = 0
        shards[-1].append([number])
        held += text.length
    return shards


def write_dump(target: Target, fmt: DumpFormat, header: DumpHeader, texts: list[IndexedText], verified: Verified, out: Path) -> list[str]:
    trace = record_trace(target)
    kept = [text.answer_ids for text in texts[: len(texts) - len(header.validation)]] or [text.answer_ids for text in texts]
    counts = torch.bincount(torch.cat(kept).long(), minlength=target.vocab_size)
    header = replace(header, wiring=header.wiring.replace(trace_hash=trace.hash()))
    with (
        DumpWriter(out, header, counts) as writer,
        Progress("import", sum(header.lengths), "tokens") as progress,
    ):
        trace.save(writer.trace_path)
        for shard in header.plan[writer.next_shard :]:
            numbers = [number for batch in shard for number in batch]
            samples = list(_samples(target, fmt, [texts[number] for number in numbers], verified))
            writer.write_shard(samples, TeacherCheck().counts())
            progress.advance(sum(texts[number].length for number in numbers))
        if not writer.manifest["complete"]:
            check = verified.teacher_check or TeacherCheck()
            writer.finish(check.to_json(), wrong_teacher=False)
    return sorted(file.name for file in out.iterdir())


def _samples(target: Target, fmt: DumpFormat, texts: list[IndexedText], verified: Verified) -> Iterator[Sample]:
    """One shard's samples; each file is read once."""
    wanted: dict[Path, set[int]] = {}
    for text in texts:
        wanted.setdefault(text.file, set()).add(text.number)
    for file, numbers in wanted.items():
        for number, sample in enumerate(fmt.read(file)):
            if number in numbers:
                yield _sample(target, with_first_token(sample, verified.first_token), verified)


@torch.no_grad()
def _sample(target: Target, sample: ForeignSample, verified: Verified) -> Sample:
    states_TnH = sample.states[:, :-1] if verified.last_slot else sample.states
    if verified.teacher_check is None:
        captured = capture_batch(target, [sample.token_ids.tolist()], ())[0]
        teacher_TH, top1_T = captured.final, captured.top1
    else:
        teacher_TH = teacher_state(target, sample, verified.last_slot, verified.norm_last)
        top1_T = own_top1(target, teacher_TH)
    return Sample(
        token_ids=sample.token_ids,
        loss_mask=answer_mask(sample),
        states=states_TnH.flatten(1),
        teacher=teacher_TH.to("cpu", sample.states.dtype),
        top1=top1_T.cpu(),
    )
