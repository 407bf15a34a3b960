"""Does a dump take more disk than its states need, by headers and file sizes alone? And in which number format does it hold them?"""

from __future__ import annotations

from math import prod

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.dump import DumpFiles

_ITEMS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_OF_DTYPE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_READ = ("token_ids", "loss_mask", "offsets", "states", "teacher", "top1")
_SPARE = 1 << 16  # bytes of headers, and of small files that people put beside a dump
_LEAVE_OUT = "leave out what nothing reads: capture again with Eyas"


def check_size(exam: Examination) -> Outcome:
    dump = exam.dump
    assert dump is not None
    if not dump.is_eyas or not dump.shards:
        return untestable("only Eyas's own dumps state what they hold")
    said = str(dump.wiring.get("states_dtype"))
    declared = _OF_DTYPE.get(said)
    stored = [info for shard in dump.shards for name, info in shard.tensors.items() if name in ("states", "teacher")]
    other = sorted({info.dtype for info in stored} - {declared})
    if declared and other:
        text = f"states are stored as {', '.join(other)}; the manifest says {said}"
        wider = any(_ITEMS.get(dtype, 1) > _ITEMS[declared] for dtype in other)
        code, weight = ("dump-size", 0.4) if wider else ("dump-changed", 0.6)
        return confirmed(Fault(code, "dump", (Evidence(text),), f"capture with --dtype {said}, or write the manifest anew", weight))
    problems = [text for text in (_shards(dump, declared), _beside(dump), _more_slots(exam)) if text is not None]
    if problems:
        return confirmed(Fault("dump-size", "dump", tuple(Evidence(text) for text in problems), _LEAVE_OUT, 0.4))
    taken, rows = _taken(dump), _rows(dump)
    return ruled_out(f"{taken} bytes for {rows} tokens, hardly more than their states need", bytes=taken, tokens=rows)


def _shards(dump: DumpFiles, declared: str | None) -> str | None:
    """Tensors that nothing reads, or padding, in the shards themselves."""
    stored = [info for shard in dump.shards for name, info in shard.tensors.items() if name in ("states", "teacher")]
    needed = sum(prod(info.shape) * _ITEMS.get(declared or info.dtype, 2) for info in stored)
    taken, rows = _taken(dump), _rows(dump)
    if not needed or taken <= 1.2 * needed + 64 * rows + _SPARE:
        return None
    spare = sorted({name for shard in dump.shards for name in shard.tensors} - set(_READ))
    words = f"; nothing reads {', '.join(spare[:4])}" if spare else ""
    return f"the shards take {taken} bytes, {taken / max(1, rows):.0f} a token; their states need {needed}{words}"


def _beside(dump: DumpFiles) -> str | None:
    """Files of the folder that the manifest does not know: leftovers of killed runs, copies, other projects' caches."""
    known = {shard.file.name for shard in dump.shards} | {"manifest.json", "trace.safetensors", "token_counts.safetensors"}
    try:
        found = {path: path.stat().st_size for path in dump.path.rglob("*") if path.is_file() and path.name not in known}
    except OSError:
        return None
    size = sum(found.values())
    if size <= 0.1 * _taken(dump) + 16 * _SPARE:
        return None
    largest = max(found, key=lambda path: found[path])
    return f"{len(found)} files that the manifest does not name take {size} bytes, such as {largest.relative_to(dump.path)}"


def _more_slots(exam: Examination) -> str | None:
    """States that the draft does not read, beside all of those that it does."""
    dump, draft = exam.dump, exam.draft
    taps, wanted = dump.wiring.get("taps") if dump else None, draft.said.get("taps") if draft else None
    if not isinstance(taps, list) or not isinstance(wanted, list) or not wanted or not set(map(str, wanted)) < set(map(str, taps)):
        return None
    return f"the dump holds {len(taps)} states a token ({', '.join(map(str, taps))}), and the draft reads {len(wanted)} of them"


def _taken(dump: DumpFiles) -> int:
    return sum(shard.file.stat().st_size for shard in dump.shards if shard.file.is_file())


def _rows(dump: DumpFiles) -> int:
    return sum(info.shape[0] for shard in dump.shards if (info := shard.tensors.get("token_ids")) is not None and info.shape)
