"""A foreign dump into Eyas's store: found, read safely, verified by numbers against the target, and written with its wiring.

What a dump does not say is taken from what its project does by default, is found by numbers, or is asked for; each is said.
Samples keep the order of their files. A killed import goes on like a capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.data.store import Dump
from eyas.errors import UserError
from eyas.formats.dumps.detect import dump_format
from eyas.formats.dumps.index import index_texts
from eyas.formats.dumps.probing import read_probes
from eyas.formats.dumps.sample import DumpFormat
from eyas.formats.dumps.verify import Verified, verify
from eyas.formats.dumps.writing import dump_header, write_dump
from eyas.formats.ids import check_meaning, to_taps
from eyas.progress import console
from eyas.taps import Tap, format_taps
from eyas.targets.devices import dtype_name
from eyas.targets.target import Target
from eyas.wiring import Wiring


@dataclass(frozen=True)
class DumpImportReport:
    """`assumed`: what the dump does not say and where it was taken from. `notes`: what was found by numbers."""

    source: str
    written: list[str]
    wiring: Wiring
    num_samples: int
    num_tokens: int
    teacher_check: dict[str, Any] | None
    assumed: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {name: value.to_json() if isinstance(value, Wiring) else value for name, value in vars(self).items()}


@dataclass
class _Said:
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_dump(
    path: Path,
    *,
    target: Target,
    out: Path,
    taps: tuple[Tap, ...] | None = None,
    convention: str | None = None,
    source: str = "auto",
) -> DumpImportReport:
    """Read `path`, verify it against `target`, and write the dump `out`.

    Args:
        target: its states over some of the texts are what the dump is compared with.
        taps: what the slots hold, in order. Without them the ids that the dump states are taken, or the project's default, or what
            the numbers show.
        convention: what such ids mean, `boundary` or `output`, if not what the project means by them.
        source: a name of `detect.FORMATS`, or auto.

    Raises:
        UserError: a file that is damaged, hostile or of another shape, slots that hold something else than claimed, a labels'
            state that is not the target's last one, values that are not finite.
    """
    fmt = dump_format(path, source)
    said = _Said()
    if taps is not None and convention is not None:
        raise UserError("--convention says what layer ids mean, but --taps names the states already", remedy="leave one of them out")
    for tap in taps or ():
        tap.check(target.num_layers)
    claimed = taps if taps is not None else _taps_by_ids(fmt, fmt.stated_ids(path), convention, target, said)
    files = fmt.files(path)
    texts = index_texts(fmt, files, target.vocab_size)
    probes = read_probes(fmt, texts)
    verified = verify(target, probes, claimed, str(path))
    said.notes.append(f"{len(probes)} of {len(texts)} texts, from all parts of the dump, were compared with the target's own states")
    _say(fmt, verified, claimed, said)
    first = next(fmt.read(files[0]))
    if first.loss_mask is None:
        said.assumed.append("loss mask: the files hold none, so every token counts as the answer's")
    if first.prenorm is not None and first.prenorm is not verified.norm_last and verified.teacher_check is not None:
        said.notes.append(f"hidden_states_prenorm is {first.prenorm}, which the numbers contradict; the numbers were followed")
    header = dump_header(target, fmt, files, texts, verified, dtype_name(first.states.dtype))
    written = write_dump(target, fmt, header, texts, verified, out)
    return DumpImportReport(
        source=fmt.name,
        written=written,
        wiring=Dump.open(out).wiring,
        num_samples=len(texts),
        num_tokens=sum(header.lengths),
        teacher_check=verified.teacher_check.to_json() if verified.teacher_check else None,
        assumed=said.assumed,
        notes=said.notes,
    )


def _taps_by_ids(fmt: DumpFormat, ids: list[int] | None, convention: str | None, target: Target, said: _Said) -> tuple[Tap, ...] | None:
    """What layer ids, stated or of the project's default, mean; None if there are none."""
    if ids is None and fmt.default_ids is not None:
        ids = fmt.default_ids(target.num_layers)
        said.assumed.append(f"layer ids: the dump states none, so {fmt.name}'s default for {target.num_layers} layers, {ids}")
    if ids is None:
        return None
    meaning = check_meaning(convention) or fmt.convention
    if convention is None:
        said.assumed.append(f"meaning of the layer ids {ids}: {meaning} ({fmt.said})")
    taps = to_taps(ids, meaning, fmt.name)
    for tap in taps:
        tap.check(target.num_layers)
    return taps


def _say(fmt: DumpFormat, verified: Verified, claimed: tuple[Tap, ...] | None, said: _Said) -> None:
    said.notes += [slot.text() for slot in verified.slots]
    if claimed is None:
        said.assumed.append(f"taps: nothing states them; the numbers show {format_taps(verified.taps)}")
    if verified.teacher_check is None:
        said.assumed.append("labels: the dump holds no last state, so the target was run over every text for it")
    else:
        norm = "before the final norm, which was applied" if verified.norm_last else "after the final norm"
        said.notes.append(
            f"labels' state: {norm}; {100 * verified.teacher_check.share:.2f} % of {verified.teacher_check.checked} rows agree"
        )
    if verified.first_token is not None:
        said.assumed.append(f"first token: {fmt.name} does not store it; the states agree with id {verified.first_token}")
    for note in (*said.assumed, *said.notes):
        console.print(note, markup=False, highlight=False)
