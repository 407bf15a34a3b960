"""Weights that are not those of the training, put to the test.

A matrix that looks like fresh noise: other noise in its place does no worse, if nothing in it was trained. What was trained is not
to be had by chance: with other numbers of the same spread the draft loses. A draft that has hardly been trained, whose parts are
all like that, is weak and not damaged, so one part must stand out.

A branch with a matrix from elsewhere (another layer, another training): the draft is far better without that branch. What was
trained together helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.catalog import CATALOG
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.noise import untrained_parts
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of, unmended
from eyas.doctor.verdict import proves_nothing

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_DRAWS = 6
_ROUNDED = 2**-7  # by bf16, twice
_MISSED = -0.02  # nats: so much worse is what no draw comes near
_BEATEN = 0.1  # nats: so much better than a trained matrix is no noise
_IDLE = -0.02  # in accuracy
_HARM, _HARM_SIGMAS, _HARM_CHANCE = 0.05, 6.0, 1e-4
# What else may seem to help a draft of which a part is another's.
_COVERED = tuple(code for code, row in CATALOG.items() if row.kind in "BCDE" or code in ("map-other", "head-foreign"))
_RESTORE = "restore this tensor from the checkpoint that was trained; if there is none, the draft must be trained"
# Behind an fc of noise one choice of states is as good as another, and some are better by chance.
_LOOKS_LIKE = ("taps-other", "taps-shifted", "slot-order", "map-other", "head-foreign", "norm-placement", "norm-state", "half-order")

_START_AS_NOISE = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "gate", "up"))  # in any training


def try_parts(exam: Examination) -> Outcome:
    """First the matrices that are the target's own, then those that look like noise, then the branches."""
    bench = bench_of(exam)
    copied = _of_target(exam)
    if copied:
        return confirmed(Fault("weights-untrained", "draft", tuple(copied), _RESTORE, 0.93, covers=_COVERED))
    if unmended(exam) or exam.suspects("target-changed", "other-target"):
        return untestable("the draft is broken otherwise: whatever stands in its parts, it does no better")
    names = untrained_parts({name: tensor for name, tensor in exam.tensors.items() if name in bench.subject.tensors})
    found = [item for name in names if (item := _untrained(exam, bench, name)) is not None]
    if found:
        covers: tuple[str, ...] = _LOOKS_LIKE if any(item.numbers["tensor"] == "fc.weight" for item in found) else ()
        parts = [str(item.numbers["tensor"]) for item in found]
        covers += _only_blunted(bench, bench.given.having({name: torch.zeros_like(bench.given.tensors[name]) for name in parts}))
        return confirmed(Fault("weights-untrained", "draft", tuple(found), _RESTORE, 0.91, covers=covers))
    return _harmful(exam, bench) or ruled_out(_acquitted(names))


def _acquitted(names: list[str]) -> str:
    noise = (
        f"{', '.join(names)}: like noise by their numbers, but no other numbers do as well" if names else "no matrix looks like fresh noise"
    )
    return f"{noise}; and every branch of the layer helps, or does little harm"


def _harmful(exam: Examination, bench: Bench) -> Outcome | None:
    """The branch without which the draft is the best, if it is far better than with it.

    A draft that was hardly trained, or is fed what it does not know, is better without much that it has, and still far below a
    table of which token follows which.
    """
    before = bench.results(bench.subject)[0]
    won = {words: compare(bench.results(other)[0], before) for words, other in _branches(bench.subject).items()}
    best = max(won, key=lambda words: won[words].after)
    if won[best].gain < max(_HARM, 0.2 * before.accuracy) or won[best].z < _HARM_SIGMAS or won[best].p > _HARM_CHANCE:
        return None
    if proves_nothing(exam, won[best].after, share=0.5):
        return None
    text = f"without {best} it is right on {percent(won[best].after)} of {len(before.hits)} rows, with it on {percent(won[best].before)}"
    text += ": something in there is not what the rest was trained with"
    covers = _only_blunted(bench, _branches(bench.given)[best])
    return confirmed(Fault("weights-untrained", "draft", (Evidence(text, {"part": best}),), _RESTORE, 0.91, covers=covers))


def _only_blunted(bench: Bench, without: Subject) -> tuple[str, ...]:
    """What was said to be mended before, if the draft as it came is at least as good merely `without` the part: it blunted the part."""
    mended = bench.results(bench.subject)[0].accuracy
    return tuple({fault.code for fault, _, _ in bench.steps}) if bench.results(without)[0].accuracy >= mended else ()


def _branches(subject: Subject) -> dict[str, Subject]:
    """The draft without each of its branches, and without each slot of fc."""
    parts = {"attention (q, k, v, o)": "midlayer.self_attn.o_proj.weight", "the MLP (gate, up, down)": "midlayer.mlp.down_proj.weight"}
    found = {words: subject.having({name: torch.zeros_like(subject.tensors[name])}) for words, name in parts.items()}
    blocks = subject.tensors["fc.weight"].chunk(subject.config.num_taps, dim=1)
    for slot in range(len(blocks)) if len(blocks) > 1 else ():
        less = [torch.zeros_like(block) if place == slot else block for place, block in enumerate(blocks)]
        found[f"fc's columns of slot {slot}"] = subject.having({"fc.weight": torch.cat(less, dim=1)})
    return found


def _of_target(exam: Examination) -> list[Evidence]:
    """Matrices of the layer that are those of a layer of the target, number by number; none if most are, as before any training."""
    target = exam.loaded_target
    own = {name: tensor.float() for name, tensor in exam.tensors.items() if name.startswith("midlayer.") and tensor.ndim == 2}
    found = {}
    for key, theirs in target.model.state_dict().items() if target is not None else ():
        name = "midlayer." + key.rsplit(".layers.", 1)[-1].partition(".")[2]
        mine = own.get(name)
        if mine is not None and mine.shape == theirs.shape and torch.allclose(mine, theirs.float(), rtol=_ROUNDED, atol=1e-6):
            found[name] = Evidence(f"{name} is the target's {key}, number by number: no training left it so", {"tensor": name})
    return list(found.values()) if len(found) < len(own) / 2 else []


def _untrained(exam: Examination, bench: Bench, name: str) -> Evidence | None:
    """None if the matrix is missed when it is replaced, or does no harm."""
    subject, tensor = bench.subject, bench.subject.tensors[name]
    here = bench.screened(subject)
    draws = [compare(bench.screened(subject.having({name: _other_noise(tensor, seed)})), here).nats for seed in range(_DRAWS)]
    if max(draws) < _MISSED:
        return None
    before = bench.results(subject)[0]
    without = compare(bench.results(subject.having({name: torch.zeros_like(tensor)}))[0], before)
    harms = without.z >= 3 and without.gain >= 0
    far_below = proves_nothing(exam, max(before.accuracy, without.after), share=0.5)
    if far_below and name.endswith(_START_AS_NOISE):  # in a draft that was hardly trained they still are
        return None
    # On texts that are strange to a draft its own parts look like noise, and are missed all the same.
    idle = without.gain > _IDLE or max(draws) > _BEATEN
    if not harms and not (idle and before.accuracy < exam.measured.get("pair_table_accuracy", 0.0)):
        return None
    text = f"{name} looks like fresh noise, and other noise in its place does as well ({max(draws):+.3f} nats at best of {_DRAWS}); "
    text += f"as it is, the draft is right on {percent(before.accuracy)} of the rows, without it on {percent(without.after)}"
    return Evidence(text, {"tensor": name, "before": before.accuracy, "without": without.after, "draws": draws})


def _other_noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return drawn * like.float().std()
