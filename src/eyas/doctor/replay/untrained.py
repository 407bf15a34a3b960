"""Matrices that look like fresh noise, left out: what a trained one holds is missed, what noise holds is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out
from eyas.doctor.noise import untrained_parts
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.trial import bench_of

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MISSED = -0.01  # nats: more than that is lost without what was trained
_RESTORE = "restore this tensor from the checkpoint that was trained; if there is none, the draft must be trained"
# What a draft with noise in it seems to be.
_LOOKS_LIKE = ("taps-other", "taps-shifted", "slot-order", "map-other", "head-foreign", "norm-placement", "norm-state", "half-order")


def try_without(exam: Examination) -> Outcome:
    bench = bench_of(exam)
    subject = bench.subject
    names = untrained_parts({name: tensor for name, tensor in exam.tensors.items() if name in subject.tensors})
    if not names:
        return ruled_out("every matrix has directions of its own: none looks like fresh noise")
    before = bench.results(subject)[0]
    poor = before.accuracy < exam.measured.get("pair_table_accuracy", 0.0)
    found = []
    for name in names:
        won = compare(bench.results(subject.having({name: torch.zeros_like(subject.tensors[name])}))[0], before)
        if won.nats > _MISSED and (poor or (won.z >= 4 and won.gain >= 0)):
            text = f"{name} looks like fresh noise, and without it the draft is right on {percent(won.after)} of the rows, "
            text += f"with it on {percent(won.before)}: nothing in it was trained"
            found.append(Evidence(text, {"tensor": name, "before": won.before, "after": won.after, "nats": won.nats}))
    if found:
        return confirmed(Fault("weights-untrained", "draft", tuple(found), _RESTORE, 0.91, covers=_LOOKS_LIKE))
    return ruled_out(f"{', '.join(names)} look like noise, and are missed when they are left out")
