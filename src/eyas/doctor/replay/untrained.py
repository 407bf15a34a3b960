"""Matrices that look like fresh noise, put to the test: other noise in their place does no worse, if nothing in them was trained.

What was trained is not to be had by chance: with other numbers of the same spread the draft loses. A draft that has hardly
been trained, whose parts are all like that, is weak and not damaged, so one part must stand out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.noise import untrained_parts
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.trial import bench_of, unmended

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_DRAWS = 6
_MISSED = -0.02  # nats: so much worse is what no draw comes near
_RESTORE = "restore this tensor from the checkpoint that was trained; if there is none, the draft must be trained"
# Behind an fc of noise one choice of states is as good as another, and some are better by chance.
_LOOKS_LIKE = ("taps-other", "taps-shifted", "slot-order", "map-other", "head-foreign", "norm-placement", "norm-state", "half-order")


def try_noise(exam: Examination) -> Outcome:
    bench = bench_of(exam)
    if unmended(exam) or exam.suspects("target-changed", "other-target"):
        return untestable("the draft is broken otherwise: whatever stands in its parts, it does no better")
    names = untrained_parts({name: tensor for name, tensor in exam.tensors.items() if name in bench.subject.tensors})
    if not names:
        return ruled_out("every matrix has directions of its own: none looks like fresh noise")
    found = [item for name in names if (item := _untrained(exam, bench, name)) is not None]
    if found:
        covers = _LOOKS_LIKE if any(item.numbers["tensor"] == "fc.weight" for item in found) else ()
        return confirmed(Fault("weights-untrained", "draft", tuple(found), _RESTORE, 0.91, covers=covers))
    return ruled_out(f"{', '.join(names)}: like noise by their numbers, but no other numbers do as well")


def _untrained(exam: Examination, bench: Bench, name: str) -> Evidence | None:
    """None if the matrix is missed when it is replaced, or does no harm."""
    subject, tensor = bench.subject, bench.subject.tensors[name]
    here = bench.screened(subject)
    draws = [compare(bench.screened(subject.having({name: _other_noise(tensor, seed)})), here).nats for seed in range(_DRAWS)]
    if max(draws) < _MISSED:
        return None
    before = bench.results(subject)[0]
    without = compare(bench.results(subject.having({name: torch.zeros_like(tensor)}))[0], before)
    harms = without.z >= 4 and without.gain >= 0
    if not harms and before.accuracy >= exam.measured.get("pair_table_accuracy", 0.0):
        return None
    text = f"{name} looks like fresh noise, and other noise in its place does as well ({max(draws):+.3f} nats at best of {_DRAWS}); "
    text += f"as it is, the draft is right on {percent(before.accuracy)} of the rows, without it on {percent(without.after)}"
    return Evidence(text, {"tensor": name, "before": before.accuracy, "without": without.after, "draws": draws})


def _other_noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return drawn * like.float().std()
