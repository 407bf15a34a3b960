"""Fix mode: the draft as it was mended in memory, written to a folder of its own, compared with what came, examined again.

Written is what the replay proved: layer ids, order of slots, switches, RoPE in both schemas, the vocabulary map, a head or
embedding taken from the target. What only a training or another capture can mend is said, and nothing is written for it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.doctor.compare_folders import compare_folders
from eyas.doctor.examination import Examination
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Diagnosis
from eyas.doctor.opening.plain import whole
from eyas.doctor.replay.subject import Subject
from eyas.doctor.runner import examine, run
from eyas.draft.checkpoint import CARD, LoadedDraft, check_vocab_map, draft_wiring_fields, filled, save_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError
from eyas.files import check_folder_free, write_text
from eyas.formats.exporting import export_loaded
from eyas.formats.registry import FORMATS
from eyas.targets.describe import target_wiring
from eyas.wiring import Wiring

DIFF = "eyas_fix.diff"
_TRACES = ("trace.safetensors", "eyas_trace.dat")


@dataclass(frozen=True)
class FixReport:
    """`out` is None if there was nothing to mend. `mended` and `left` are codes of findings about the draft, before and after."""

    out: Path | None
    before: Diagnosis
    after: Diagnosis | None
    diff: str
    mended: tuple[str, ...]
    left: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "out": None if self.out is None else str(self.out),
            "mended": list(self.mended),
            "left": list(self.left),
            "notes": list(self.notes),
            "diff": self.diff,
            "before": self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }


def fix(exhibits: Exhibits, options: Options, out: Path) -> FixReport:
    """Examine, mend, write to `out`, and examine that.

    Raises:
        UserError: there is no draft, `out` is in use or the draft itself, nothing can be replayed, or the fault is none
            that a file can mend.
    """
    draft = exhibits.draft
    if draft is None:
        raise UserError("--fix needs --draft", remedy="name the draft that is to be mended")
    _check_place(draft, out)
    before, exam = examine(exhibits, options)
    wrong = _about_draft(before)
    if not wrong:
        return FixReport(None, before, None, "", (), (), ("nothing is wrong with the draft, so nothing was written",))
    subject = _writable(exam)
    notes = _write(exam, subject, before, out)
    diff = compare_folders(draft, out)
    write_text(out / DIFF, diff)
    after = run(dataclasses.replace(exhibits, draft=out), options)
    still = _about_draft(after)
    return FixReport(out, before, after, diff, tuple(code for code in wrong if code not in still), still, notes)


def _about_draft(diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.code for item in diagnosis.findings if item.subject == "draft"))


def _check_place(draft: Path, out: Path) -> None:
    """Never in place, and never over anything: said before the examination, not behind it."""
    if out.resolve() == draft.resolve() or draft.resolve() in out.resolve().parents:
        raise UserError(
            "--out is the draft itself, or lies in it", got=str(out), remedy="name another folder: a draft is never mended in place"
        )
    check_folder_free(out)


def _writable(exam: Examination) -> Subject:
    """The mended draft. Raises UserError for one that no checkpoint can hold."""
    bench = exam.bench
    _refuse_lost_weights(exam)
    if bench is None:
        raise UserError("the draft cannot be mended without a replay", got=exam.why_no_bench, remedy="give --target, and --data or --dump")
    subject = bench.subject
    if subject.shift or subject.ahead:
        raise UserError(
            "the draft was trained on tokens and states that stand otherwise to each other",
            got=f"states of position p - {subject.shift}, tokens of p + {1 + subject.ahead}",
            remedy="no config can say so to an engine: train it again on a dump that eyas capture made",
        )
    if subject.normed:
        raise UserError(
            "the draft was trained on states behind the final norm",
            got=f"slots {sorted(subject.normed)}",
            remedy="no config can say so to an engine: train it again",
        )
    made_up = [name for name, tensor in subject.tensors.items() if name not in exam.tensors and tensor is bench.given.tensors.get(name)]
    made_up = [name for name in made_up if name not in ("d2t", "t2d") and not name.endswith("norm.weight")]
    if made_up:
        raise UserError(
            "tensors are missing that nothing can restore", got=", ".join(sorted(made_up)), remedy="export the draft again, whole"
        )
    return subject


def _refuse_lost_weights(exam: Examination) -> None:
    """The target's rows can stand in for a head or an embedding; for what else was lost nothing can."""
    lost = [item for fault in exam.faults if fault.code in ("weights-untrained", "weights-not-finite") for item in fault.evidence]
    lost = [item for item in lost if not _replaced(exam, str(item.numbers.get("tensor", "")))]
    if lost:
        got = "; ".join(item.text for item in lost[:3])
        remedy = "export the draft again from the checkpoint that was trained"
        raise UserError("weights are missing that nothing can restore", got=got, remedy=remedy)


def _replaced(exam: Examination, name: str) -> bool:
    """Whether the replay put the target's rows in place of this head or embedding."""
    bench = exam.bench
    if bench is None or not name.startswith(("lm_head", "embed_tokens")):
        return False
    return bench.subject.tensors.get(name) is not bench.given.tensors.get(name)


def _write(exam: Examination, subject: Subject, before: Diagnosis, out: Path) -> tuple[str, ...]:
    files, exhibits = exam.draft, exam.exhibits
    assert files is not None
    config = dataclasses.replace(subject.config, max_position_embeddings=_positions(exam, subject.config, before))
    draft = filled(config, _stored(exam, subject, config)).eval().requires_grad_(False)
    check_vocab_map(draft, "the mended draft")
    wiring = _wiring(exam, draft, subject)
    trace = next((files.folder / name for name in _TRACES if (files.folder / name).is_file()), None)
    form = FORMATS.get(files.dialect)
    if form is not None and form.refuse(config) is None:
        report = export_loaded(LoadedDraft(draft, wiring, files.folder.name, trace), form.name, out)
        return (f"written as {form.title} has it", *report.notes)
    card = files.folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else f"# EAGLE-3 draft for {exhibits.target}\n"
    text += f"\nMended by `eyas doctor --fix`: {', '.join(_about_draft(before))}. What changed is in {DIFF}.\n"
    save_draft(out, draft, wiring, trace, text, dtype=None)
    return () if form is None else (f"{form.title} cannot have this draft; it is written as Eyas's own",)


def _stored(exam: Examination, subject: Subject, config: DraftConfig) -> dict[str, torch.Tensor]:
    """Each tensor in the dtype in which it came; those that are new in that of fc."""
    usual = exam.tensors["fc.weight"].dtype if "fc.weight" in exam.tensors else torch.float32
    usual = usual if usual.is_floating_point else torch.float32
    with torch.device("meta"):
        wanted = Eagle3Draft(config).state_dict().keys()
    stored = {}
    for name in wanted:
        tensor, came = subject.tensors[name], exam.tensors.get(name)
        dtype = came.dtype if came is not None and came.is_floating_point() else usual
        stored[name] = tensor.to(dtype).contiguous() if tensor.is_floating_point() else tensor.contiguous()
    return stored


def _positions(exam: Examination, config: DraftConfig, before: Diagnosis) -> int:
    """As the draft said, unless that was a fault: then as many as its target has."""
    assert exam.draft is not None
    said = whole(exam.draft.stated.get("max_position_embeddings"))
    if said is None or any(item.code == "rope-range" for item in before.findings):
        target = exam.parts
        theirs = whole(getattr(target.config, "max_position_embeddings", None)) if target is not None else None
        return theirs or config.max_position_embeddings
    return said


def _wiring(exam: Examination, draft: Eagle3Draft, subject: Subject) -> Wiring:
    """What the draft's own wiring says beyond what was mended; else what its target says."""
    assert exam.draft is not None
    assert exam.exhibits.target is not None
    try:
        base = Wiring.from_json(exam.draft.said, "wiring")
    except UserError:
        base = target_wiring(exam.exhibits.target, exam.exhibits.trust_remote_code)
    return base.replace(taps=subject.taps, **draft_wiring_fields(draft))
