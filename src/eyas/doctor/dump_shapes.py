"""What the headers of a dump's shards show: rows and columns beside those that the manifest promises. No tensor is read.

A width or a number of rows that is a whole fraction of the promised one is a rank's share; another number of states is a
capture of other layers; all else is a file that lost something.
"""

from __future__ import annotations

from collections.abc import Iterator

from eyas.doctor.hypothesis import Evidence, Fault
from eyas.doctor.opening.dump import DumpFiles, Shard
from eyas.doctor.opening.plain import whole

_ROWS = ("token_ids", "loss_mask", "states", "teacher", "top1")
_FLAT = ("token_ids", "loss_mask", "offsets", "top1")
_MOST_RANKS = 256
AGAIN = "copy the dump again, whole; if it was made so, capture again"
_GATHER = "gather the ranks' shares before they are written: eyas capture does, whatever the engine's parallelism"
_STATES = "capture the states that the wiring names, each once: eyas capture --taps"


def shape_faults(dump: DumpFiles) -> list[Fault]:
    """One fault a kind, with the first few places."""
    found: dict[str, list[str]] = {}
    for shard in dump.shards:
        for code, text in _of_shard(dump, shard):
            found.setdefault(code, []).append(f"{shard.file.name}: {text}")
    remedies = {"states-scattered": (_GATHER, 0.85), "taps-impossible": (_STATES, 0.8), "dump-short": (AGAIN, 0.75)}
    faults = []
    for code, texts in found.items():
        remedy, weight = remedies[code]
        covers = ("dump-size",) if code == "dump-short" else ("dump-size", "dump-short")
        faults.append(Fault(code, "dump", tuple(Evidence(text) for text in texts[:4]), remedy, weight, covers=covers))
    return faults


def _of_shard(dump: DumpFiles, shard: Shard) -> Iterator[tuple[str, str]]:
    shapes = {name: info.shape for name, info in shard.tensors.items()}
    rows = {name: shapes[name][0] for name in _ROWS if shapes.get(name)}
    lost = [name for name in (*_ROWS, "offsets") if name not in shapes]
    if lost and shapes:
        yield "dump-short", f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} not there"
    odd = [f"{name} {list(shapes[name])}" for name in _FLAT if name in shapes and len(shapes[name]) != 1]
    if odd:
        yield "dump-short", f"{', '.join(odd)}: these have one number a row"
    if len(set(rows.values())) > 1:
        ranks = _share(rows.get("states"), rows.get("token_ids"))
        words = ", ".join(f"{name} has {count} rows" for name, count in rows.items())
        yield ("dump-short", words) if ranks is None else ("states-scattered", f"{words}: one rank's of {ranks}")
    yield from _widths(dump, shapes)


def _widths(dump: DumpFiles, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    taps, hidden = dump.wiring.get("taps"), whole(dump.wiring.get("target_hidden_size"))
    states, teacher = shapes.get("states"), shapes.get("teacher")
    if hidden and isinstance(taps, list) and taps and states and len(states) == 2 and states[1] != len(taps) * hidden:
        width, wanted = states[1], len(taps) * hidden
        if width == hidden:
            yield "states-scattered", f"states are {width} wide, one state where {len(taps)} belong: others stayed on other stages"
        elif width % hidden == 0:
            yield "taps-impossible", f"states are {width} wide, which is {width // hidden} states of {hidden}; {len(taps)} are named"
        elif (ranks := _share(width, wanted)) is not None:
            yield "states-scattered", f"states are {width} wide, one rank's share of {ranks} of {len(taps)} states of {hidden}"
        else:
            yield "dump-short", f"states are {width} wide, which is {width / hidden:g} states of {hidden}; {len(taps)} are named"
    if hidden and teacher and len(teacher) == 2 and teacher[1] != hidden:
        ranks = _share(teacher[1], hidden)
        text = f"the labels' state is {teacher[1]} wide, the target's {hidden}"
        yield ("dump-short", text) if ranks is None else ("states-scattered", f"{text}: one rank's share of {ranks}")


def _share(part: int | None, all_of_them: int | None) -> int | None:
    """Of how many ranks `part` is one's; None for no such share."""
    if not part or not all_of_them or part >= all_of_them or all_of_them % part:
        return None
    return ranks if (ranks := all_of_them // part) <= _MOST_RANKS else None
