"""The dump's rows by themselves: hashes, repeats, and whether each sample's labels follow its own text."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from eyas.doctor.catalog import CATALOG
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.dump_samples import strange_states
from eyas.files import sha256_file

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.samples import RawSample

_AGAIN = "copy the dump again from where it was made; if it was made so, capture again"
_MOST_BYTES = 16 << 30
_CHANCE = 1e-4  # over all samples; the rows of one are not independent
_EDITS = tuple(code for code, row in CATALOG.items() if row.kind in "ABCDIJKMS" and code not in ("dump-changed", "dump-wiring"))


def check_hashes(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas or not dump.shards:
        return untestable("only Eyas's own dumps carry hashes")
    if sum(shard.file.stat().st_size for shard in dump.shards if shard.file.is_file()) > _MOST_BYTES:
        return untestable("the dump is too large to be hashed here: eyas data verify does it")
    wrong = [
        shard.file.name
        for shard in dump.shards
        if shard.file.is_file() and isinstance(shard.stated.get("sha256"), str) and sha256_file(shard.file) != shard.stated["sha256"]
    ]
    if wrong:
        text = f"{len(wrong)} of {len(dump.shards)} shards are not those that the manifest was written with, such as {wrong[0]}"
        return confirmed(Fault("dump-changed", "dump", (Evidence(text, {"files": wrong}),), _AGAIN, 0.6, shadow=_EDITS))
    return ruled_out(f"all {len(dump.shards)} shards have the manifest's hashes")


def check_repeats(exam: Examination) -> Outcome:
    counts = Counter(tuple(sample.token_ids.tolist()) for sample in exam.samples)
    twice = sum(count - 1 for count in counts.values() if count > 1)
    if twice > 0 and exam.dump is not None and exam.dump.is_eyas:
        text = f"{twice} of {len(exam.samples)} samples are the text of another one again"
        return confirmed(Fault("dump-repeats", "dump", (Evidence(text),), "prepare the chats again: duplicates are dropped there", 0.5))
    return ruled_out(f"{len(exam.samples)} samples are all different texts")


def check_own_samples(exam: Examination) -> Outcome:
    """Samples whose states or labels are far from their own text's, where those of all others are not: they are somebody else's."""
    strange = strange_states(exam)
    if strange is not None:
        return strange
    counts = {sample.id: count for sample in exam.samples if (count := _follows(exam, sample)) is not None}
    if len(counts) < 5:
        return untestable("too few samples store the target's own tokens")
    shares = {name: hits / rows for name, (hits, rows) in counts.items()}
    usual = median(shares.values())
    bad = [
        name
        for name, (hits, rows) in counts.items()
        if shares[name] < 0.4 * usual and _chance_of_at_most(hits, rows, usual) < _CHANCE / len(counts)
    ]
    numbers = {"usual": usual, "odd": len(bad), "samples": len(shares)}
    if bad and usual > 0.5 and len(bad) < 0.8 * len(shares) and not _explained(exam):
        rare = f"on {percent(shares[bad[0]])} of the rows; usual is {percent(usual)}"
        text = f"in {len(bad)} of {len(shares)} samples, such as {bad[0]}, the labels follow the text {rare}"
        return confirmed(Fault("dump-other-rows", "dump", (Evidence(text, numbers),), _AGAIN, 0.84))
    return ruled_out(f"every sample's labels follow its own text; usual is {percent(usual)}", **numbers)


def _explained(exam: Examination) -> bool:
    return exam.suspects("pair-shift", "label-shift", "text-foreign")


def _chance_of_at_most(hits: int, rows: int, share: float) -> float:
    """The binomial distribution's lower tail, for a share above 0. Short samples stray far by chance."""
    if share >= 1.0:
        return float(hits == rows)
    logs = (math.lgamma(rows + 1) - math.lgamma(hit + 1) - math.lgamma(rows - hit + 1) for hit in range(hits + 1))
    return sum(math.exp(log + hit * math.log(share) + (rows - hit) * math.log1p(-share)) for hit, log in enumerate(logs))


def _follows(exam: Examination, sample: RawSample) -> tuple[int, int] | None:
    """How often the token that the labels' state gives is the text's next one, over the answer's rows; and how many these are."""
    from eyas.doctor.replay.texts import labels_of

    rows = sample.answer_rows
    if len(rows) < 4:
        return None
    if sample.teacher is not None and exam.parts is not None and sample.teacher.shape == (len(sample.token_ids), exam.parts.hidden_size):
        teacher_RH = sample.teacher[rows].float()
        said_R = exam.parts.head((teacher_RH if sample.normed else exam.parts.norm(teacher_RH))[None])[0].argmax(-1)
    elif sample.top1 is not None and len(sample.top1) == len(sample.token_ids):
        said_R = (labels_of(sample, exam.parts) if exam.parts is not None else sample.top1)[rows]
    else:
        return None
    return int((said_R == sample.token_ids[rows + 1]).sum()), len(rows)
