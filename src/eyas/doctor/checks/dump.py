"""I and J: is the dump whole, finite, and what its manifest says; and does it take more disk than it needs."""

from __future__ import annotations

from collections import Counter
from math import prod

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.dump import DumpFiles, Shard
from eyas.doctor.opening.plain import inside, whole

_AGAIN = "copy the dump again, whole; if it was made so, capture again"
_ITEMS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_OF_DTYPE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def _broken(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas:
        return _foreign(exam)
    if dump.manifest.problem:
        return confirmed(Fault("dump-broken", "dump", (Evidence(dump.manifest.problem),), _AGAIN, 0.8))
    problems = [shard.problem for shard in dump.shards if shard.problem]
    planned = inside(dump.manifest.value, "batch_plan", "shards")
    if dump.manifest.value.get("complete") is not True or (isinstance(planned, list) and len(planned) != len(dump.shards)):
        of = len(planned) if isinstance(planned, list) else "?"
        problems.append(f"the dump is unfinished: {len(dump.shards)} of {of} shards")
    lost = [key for key in ("wiring", "samples", "batch_plan", "shards") if key not in dump.manifest.value]
    problems += [f"the manifest lacks {', '.join(lost)}"] if lost else []
    if problems:
        return confirmed(Fault("dump-broken", "dump", tuple(Evidence(text) for text in problems[:4]), _AGAIN, 0.8))
    return ruled_out(f"{len(dump.shards)} shards, every byte there")


def _foreign(exam: Examination) -> Outcome:
    from eyas.doctor.replay.samples import foreign_problem

    problem = foreign_problem(exam)
    if problem is not None:
        return confirmed(Fault("dump-broken", "dump", (Evidence(problem),), _AGAIN, 0.8))
    return ruled_out("a dump of another project, whose first files can be read")


def _counts(exam: Examination) -> Outcome:
    """Rows of every tensor, against each other and the manifest's lengths."""
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas or not dump.shards:
        return untestable("only Eyas's own dumps state lengths")
    problems = [text for shard in dump.shards for text in _shard_counts(dump, shard)]
    total = whole(dump.manifest.value.get("num_tokens"))
    rows = sum(info.shape[0] for shard in dump.shards if (info := shard.tensors.get("token_ids")) is not None and info.shape)
    if total is not None and total != sum(dump.lengths):
        problems.append(f"the manifest counts {total} tokens, and its samples have {sum(dump.lengths)}")
    elif not problems and sum(dump.lengths) != rows:
        problems.append(f"the samples have {sum(dump.lengths)} tokens, and the shards {rows}")
    if problems:
        return confirmed(Fault("dump-short", "dump", tuple(Evidence(text) for text in problems[:4]), _AGAIN, 0.75))
    return ruled_out(f"{rows} rows of tokens, states and labels, as many as the manifest says")


def _shard_counts(dump: DumpFiles, shard: Shard) -> list[str]:
    shapes = {name: info.shape for name, info in shard.tensors.items()}
    rows = {name: shapes[name][0] for name in ("token_ids", "loss_mask", "states", "teacher", "top1") if shapes.get(name)}
    found = []
    if len(set(rows.values())) > 1:
        found.append(f"{shard.file.name}: " + ", ".join(f"{name} has {count} rows" for name, count in rows.items()))
    lost = [name for name in ("token_ids", "loss_mask", "offsets", "states", "teacher", "top1") if name not in shapes]
    if lost and shapes:
        found.append(f"{shard.file.name} lacks {', '.join(lost)}")
    taps, hidden = dump.wiring.get("taps"), whole(dump.wiring.get("target_hidden_size"))
    states = shapes.get("states")
    if isinstance(taps, list) and hidden and states and len(states) == 2 and states[1] != len(taps) * hidden:
        found.append(
            f"{shard.file.name}: states are {states[1]} wide, which is {states[1] / hidden:g} states of {hidden}; {len(taps)} are named"
        )
    return found


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


def _size(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas or not dump.shards:
        return untestable("only Eyas's own dumps state what they hold")
    declared = _OF_DTYPE.get(str(dump.wiring.get("states_dtype")))
    stored = [info for shard in dump.shards for name, info in shard.tensors.items() if name in ("states", "teacher")]
    wide = {info.dtype for info in stored}
    taken = sum(shard.file.stat().st_size for shard in dump.shards if shard.file.is_file())
    needed = sum(prod(info.shape) * _ITEMS.get(declared or info.dtype, 2) for info in stored)
    rows = sum(info.shape[0] for shard in dump.shards if (info := shard.tensors.get("token_ids")) is not None and info.shape)
    if declared and wide and wide != {declared}:
        text = f"states are stored as {', '.join(sorted(wide))}; the manifest says {dump.wiring.get('states_dtype')}"
        return confirmed(Fault("dump-size", "dump", (Evidence(text),), f"capture with --dtype {dump.wiring.get('states_dtype')}", 0.4))
    if needed and taken > 1.5 * needed + 64 * rows + 65536:
        text = f"the shards take {taken} bytes, {taken / max(1, rows):.0f} a token; their states need {needed}"
        return confirmed(Fault("dump-size", "dump", (Evidence(text),), "leave out what nothing reads: capture again with Eyas", 0.4))
    return ruled_out(f"{taken} bytes for {rows} tokens, of which states need {needed}", bytes=taken, tokens=rows)


def _changed(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_rows import check_hashes

    return check_hashes(exam)


def _finite(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_rows import check_values

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
        _size,
        prior=0.05,
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
