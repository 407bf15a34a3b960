"""I and J: is the dump whole, finite, and what its manifest says; and does it take more disk than it needs."""

from __future__ import annotations

from collections import Counter

from eyas.doctor.catalog import CATALOG
from eyas.doctor.dump_shapes import AGAIN, shape_faults
from eyas.doctor.dump_size import check_size
from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.plain import inside, whole


def _broken(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas:
        return untestable("a dump of another project: its files are read further down")
    if dump.manifest.problem:
        return confirmed(Fault("dump-broken", "dump", (Evidence(dump.manifest.problem),), AGAIN, 0.8))
    problems = [shard.problem for shard in dump.shards if shard.problem]
    planned = inside(dump.manifest.value, "batch_plan", "shards")
    if dump.manifest.value.get("complete") is not True or (isinstance(planned, list) and len(planned) != len(dump.shards)):
        of = len(planned) if isinstance(planned, list) else "?"
        problems.append(f"the dump is unfinished: {len(dump.shards)} of {of} shards")
    lost = [key for key in ("wiring", "samples", "batch_plan", "shards") if key not in dump.manifest.value]
    problems += [f"the manifest lacks {', '.join(lost)}"] if lost else []
    problems += [problem for name in ("token_counts.safetensors", "trace.safetensors") if (problem := dump.problem_of(name)) is not None]
    if problems:
        return confirmed(Fault("dump-broken", "dump", tuple(Evidence(text) for text in problems[:4]), AGAIN, 0.8))
    return ruled_out(f"{len(dump.shards)} shards, every byte there")


def _readable(exam: Examination) -> Outcome:
    """As training would read it."""
    from eyas.doctor.opening.strict import dump_refusal
    from eyas.doctor.replay.samples import foreign_problem

    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas:
        problem = foreign_problem(exam)
        if problem is not None:
            return confirmed(Fault("dump-broken", "dump", (Evidence(problem),), AGAIN, 0.8))
        return ruled_out("a dump of another project, whose files can be read")
    refused = dump_refusal(dump.path)
    if refused is None:
        return ruled_out("manifest, shards and samples are read as training reads them")
    words, edited = refused
    nearer = tuple(code for code, row in CATALOG.items() if row.kind in _OF_DUMPS and code not in ("dump-broken", "dump-changed"))
    return confirmed(Fault("dump-changed" if edited else "dump-broken", "dump", (Evidence(words),), AGAIN, 0.55, shadow=nearer))


_OF_DUMPS = "ABCDEFGHIJKMNS"  # what a dump may have by any other test is nearer to the cause than a reader's refusal


def _counts(exam: Examination) -> Outcome:
    """Rows and columns of every tensor, against each other and what the manifest says."""
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas or not dump.shards:
        return untestable("only Eyas's own dumps state lengths")
    faults = shape_faults(dump)
    total = whole(dump.manifest.value.get("num_tokens"))
    rows = sum(info.shape[0] for shard in dump.shards if (info := shard.tensors.get("token_ids")) is not None and info.shape)
    problem = None
    if total is not None and total != sum(dump.lengths):
        problem = f"the manifest counts {total} tokens, and its samples have {sum(dump.lengths)}"
    elif not faults and sum(dump.lengths) != rows:
        problem = f"the samples have {sum(dump.lengths)} tokens, and the shards {rows}"
    if problem is not None:
        faults.append(Fault("dump-short", "dump", (Evidence(problem),), AGAIN, 0.75))
    if faults:
        return confirmed(*faults)
    return ruled_out(f"{rows} rows of tokens, states and labels, as many and as wide as the manifest says")


def _repeats(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    twice = [name for name, count in Counter(dump.ids).items() if count > 1]
    if twice:
        text = f"{len(twice)} samples stand in the manifest more than once, such as {twice[0]}"
        return confirmed(Fault("dump-repeats", "dump", (Evidence(text),), "prepare the chats again: duplicates are dropped there", 0.5))
    return ruled_out(f"{len(dump.ids)} samples, each named once")


def _wirings(exam: Examination) -> Outcome:
    from eyas.doctor.contract import compare_wirings

    return compare_wirings(exam)


def _changed(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_rows import check_hashes

    return check_hashes(exam)


def _finite(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_values import check_values

    return check_values(exam)


def _other_rows(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_rows import check_own_samples

    return check_own_samples(exam)


def _same_texts(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_rows import check_repeats

    return check_repeats(exam)


HYPOTHESES = (
    Hypothesis(
        "dump-broken",
        "static",
        "files of the dump are missing or damaged",
        ("dump",),
        "read manifest and headers",
        "bytes or files are missing",
        _broken,
        prior=0.3,
    ),
    Hypothesis(
        "dump-short",
        "static",
        "states and tokens differ in number",
        ("dump",),
        "compare rows of all tensors and lengths",
        "they differ",
        _counts,
        prior=0.3,
    ),
    Hypothesis(
        "dump-repeats",
        "static",
        "a sample stands in the dump twice",
        ("dump",),
        "count the samples' names",
        "one comes twice",
        _repeats,
        prior=0.1,
    ),
    Hypothesis(
        "dump-wiring",
        "static",
        "dump and draft were not made for each other",
        ("draft", "dump"),
        "compare their wirings",
        "a field differs",
        _wirings,
        prior=0.3,
    ),
    Hypothesis(
        "dump-size",
        "static",
        "the dump is larger than it must be",
        ("dump",),
        "add up what its states need",
        "it takes much more",
        check_size,
        prior=0.05,
    ),
    Hypothesis(
        "dump-broken",
        "weights",
        "the dump cannot be read as training reads it",
        ("dump",),
        "read it by the strict reader",
        "it refuses",
        _readable,
        prior=0.3,
        seconds=0.5,
    ),
    Hypothesis(
        "dump-changed",
        "weights",
        "shards were changed after they were written",
        ("dump",),
        "hash every shard",
        "a hash differs",
        _changed,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "dump-not-finite",
        "weights",
        "the dump holds NaN, infinity, zeros or absurd values",
        ("samples",),
        "read the states",
        "some rows do",
        _finite,
        prior=0.3,
        seconds=0.5,
    ),
    Hypothesis(
        "dump-repeats",
        "weights",
        "the same text stands in the dump twice",
        ("samples",),
        "compare token ids",
        "two samples are equal",
        _same_texts,
        prior=0.1,
        seconds=0.1,
    ),
    Hypothesis(
        "dump-other-rows",
        "replay",
        "states belong to other samples",
        ("samples",),
        "compare each sample's states with its own tokens",
        "some samples' do not fit",
        _other_rows,
        prior=0.3,
        seconds=1.0,
    ),
)
