"""Maps of a draft vocabulary that lie beside a dump, where trainers of other projects pick them up by their name.

A stale one makes the next training read rows of lm_head as other tokens; nothing in its figures shows it.

Shapes: V draft vocabulary, W target vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, untestable

_NAMES = ("d2t", "t2d")
_REMOVE = "remove the file, or put the map of the draft that is to be trained further in its place"


def check_stray_maps(exam: Examination) -> Outcome:
    assert exam.dump is not None
    folder = exam.dump.path if exam.dump.path.is_dir() else exam.dump.path.parent
    files = [file for name in _NAMES for file in sorted(folder.glob(f"{name}*.npy")) if file.is_file()]
    problems = [text for file in files if (text := _problem(exam, file)) is not None]
    if problems:
        return confirmed(Fault("map-other", "dump", tuple(Evidence(text) for text in problems), _REMOVE, 0.6))
    if not files:
        return untestable("no map lies beside the dump")
    return ruled_out("the map beside the dump is the draft's")


def _problem(exam: Examination, file: Path) -> str | None:
    try:
        values = torch.from_numpy(numpy.load(file, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        return f"{file.name} beside the dump cannot be read: {str(error)[:120]}"
    mine = exam.tensors.get(file.stem[:3])
    if mine is None:
        return None
    if values.shape != mine.shape:
        return f"{file.name} beside the dump has shape {list(values.shape)}, the draft's {list(mine.shape)}: it is of another vocabulary"
    others = int((values.long() != mine.long()).sum())
    return f"{others} of {len(values)} entries of {file.name} beside the dump are not the draft's" if others else None
