"""Are these the weights that dump and draft were made on? Traces tell, and a dump's labels do where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eyas.capture.trace import Trace, compare_target, compare_traces
from eyas.doctor.catalog import CATALOG
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.errors import UserError, WiringError
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_TRAIN = "train the draft on dumps of the target as it is now, or serve the target that it was trained on"
_CAPTURE = "give the dump that was captured from this target, or capture again: eyas capture"
_WEIGHED = 0.93


def check_target(exam: Examination) -> Outcome:
    """The target beside the trace of the draft and of the dump."""
    target = exam.loaded_target
    assert target is not None
    faults, said = [], []
    same: dict[str, bool] = {}
    for name, trace in read_traces(exam).items():
        if isinstance(trace, str):
            faults.append(Fault("files-mixed", name, (Evidence(f"the {name}'s trace cannot be read: {trace}"),), "copy it again", 0.5))
            continue
        words, numbers, covers = _compared(target, trace)
        same[name] = words is None
        if words is None:
            said.append(f"as far as the {name}'s trace tells, the target is the same: {numbers['text']}")
        elif name == "dump" and same.get("draft"):  # then it is not the target that changed
            text = f"the dump was made on another model than this target, which is the draft's: {words}"
            faults.append(Fault("other-target", "dump", (Evidence(text, numbers),), _CAPTURE, _WEIGHED, covers=_OF_OTHER_DUMP))
        else:
            text = f"the target is not the one that the {name} was made on: {words}"
            faults.append(Fault("target-changed", "target", (Evidence(text, numbers),), _TRAIN, _WEIGHED, covers=covers))
    if faults:
        return confirmed(*faults)
    return ruled_out("; ".join(said)) if said else untestable("neither draft nor dump bring a trace")


def _compared(target: Target, trace: Trace) -> tuple[str | None, dict[str, Any], tuple[str, ...]]:
    """What differs, None if nothing does; the numbers; and what only follows from it."""
    try:
        report = compare_target(target, trace)
    except WiringError as error:  # not even its sizes are the same
        return " ".join(str(error).split()), {}, (*_FOLLOWS, *_REPLAYED)
    if report.same:
        return None, {"text": report.text()}, ()
    numbers = {"distance": report.distance, "allowed": report.allowed, "top1_agreement": report.top1_agreement}
    return report.text(), numbers, _FOLLOWS if report.top1_agreement >= _BEYOND else (*_FOLLOWS, *_REPLAYED)


_BEYOND = 0.3  # of the next tokens that must still be the same, or nothing that a replay shows is the draft's own fault
# What a changed target makes look wrong, and what says less than the trace does.
_FOLLOWS = ("draft-stale", "dump-other-rows", "text-foreign", "teacher-layer", "head-foreign", "embedding-foreign", "label-shift")
_REPLAYED = tuple(code for code, row in CATALOG.items() if row.kind in "ABCDEFGM")
_OF_OTHER_DUMP = (*_FOLLOWS, "dump-wiring", "target-changed", *(code for code, row in CATALOG.items() if row.kind == "M"))


def read_traces(exam: Examination) -> dict[str, Trace | str]:
    """Those that draft and dump bring; in words, why one cannot be read."""
    found = {}
    for name, folder in (("draft", exam.exhibits.draft), ("dump", exam.exhibits.dump)):
        if folder is not None:
            file = next((folder / one for one in ("trace.safetensors", "eyas_trace.dat") if (folder / one).is_file()), None)
            if file is not None:
                found[name] = _load(file)
    return found


def _load(path: Path) -> Trace | str:
    try:
        return Trace.load(path)
    except UserError as error:
        return " ".join(str(error).split())


def compare_records(exam: Examination) -> Outcome:
    """Draft and dump, each by its own trace."""
    traces = read_traces(exam)
    left, right = traces.get("draft"), traces.get("dump")
    if not isinstance(left, Trace) or not isinstance(right, Trace):
        return untestable("draft and dump do not both bring a trace")
    report = compare_traces(left, right)
    if report is None:
        text = "the traces of draft and dump are of targets that differ in layers, width or tokens"
        return confirmed(Fault("draft-stale", "draft and dump", (Evidence(text),), _TRAIN, 0.7))
    if not report.same:
        text = f"draft and dump were made on different weights: {report.text()}"
        return confirmed(Fault("draft-stale", "draft and dump", (Evidence(text, {"distance": report.distance}),), _TRAIN, 0.8))
    return ruled_out(f"draft and dump were made on the same weights: {report.text()}")


@torch.no_grad()
def check_dump_teacher(exam: Examination) -> Outcome:
    """Without a forward: the labels' state through this target's head, against the tokens stored with it."""
    parts = exam.parts
    if parts is None:
        return untestable("the target's head cannot be read")
    if exam.suspects("teacher-layer", "teacher-norm", "label-shift", "dump-not-finite"):
        return untestable("the labels' state is wrong already")
    hits = total = 0
    for sample in exam.samples[:64]:
        if sample.teacher is None or sample.top1 is None or len(sample.teacher) != len(sample.top1):
            continue
        if sample.teacher.shape[-1] != parts.hidden_size or not sample.normed:
            continue
        said = parts.head(sample.teacher.float()[None])[0].argmax(-1)
        hits, total = hits + int((said == sample.top1).sum()), total + len(said)
    if not total:
        return untestable("the dump stores no labels beside their state")
    share = hits / total
    if share < 0.9:
        text = f"this target's head gives the dump's tokens on {percent(share)} of {total} rows: head or norm changed since"
        return confirmed(Fault("target-changed", "dump", (Evidence(text, {"share": share}),), _TRAIN, 0.7, shadow=("teacher-layer",)))
    return ruled_out(f"this target's head gives the dump's own tokens on {percent(share)} of {total} rows", share=share)
