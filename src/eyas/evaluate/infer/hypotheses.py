"""What the wiring says besides taps, judged one by one at the best taps: pairing, norms, RoPE.

Each is compared with what the draft's config says; another value is taken only if it is significantly better there, on rows enough
for a verdict. A state of a later position must besides help the draft to more than what that state says by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eyas.draft.model import Eagle3Draft
from eyas.evaluate.infer.evidence import MIN_ROWS, Evidence
from eyas.evaluate.infer.lens import TRAINED_ON_LATER, lens_accuracy
from eyas.evaluate.infer.measure import SIGNIFICANT, Hypothesis, measure, p_value, variant
from eyas.taps import Tap
from eyas.targets.target import Target

_THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
# A fresher state than the draft was trained on can help it: it knows more. Only a collapse in its own place speaks for a shift.
_SHIFT_FACTOR = 2.0


@dataclass(frozen=True)
class Other:
    """`best` is `declared` unless another value is decided to be better. `decided`: every other value is significantly worse.

    accuracies: of every value tried, by its name; of step 0, for norm_output of step 1.
    changes: of the draft's config, that make it run step 0 as `best` says; empty where it does so already.
    """

    name: str
    declared: Any
    best: Any
    decided: bool
    accuracies: dict[str, float]
    changes: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "changes"}


def judge_others(target: Target, draft: Eagle3Draft, evidence: Evidence, taps: tuple[Tap, ...]) -> tuple[Other, ...]:
    here = Hypothesis(taps)

    def first(**changes: Any) -> torch.Tensor:
        return measure(variant(draft, **changes), evidence, here, evidence.first).first

    def second(value: bool) -> torch.Tensor:
        return measure(variant(draft, norm_output=value), evidence, here, evidence.first, num_steps=2).second

    config, before, output = draft.config, "norm_before_residual", "norm_output"
    residual = _judge(
        before, config.norm_before_residual, [not config.norm_before_residual], lambda value: first(norm_before_residual=value)
    )
    found = (
        _judge_shift(target, draft, evidence, taps),
        replace(residual, changes={} if residual.best == residual.declared else {before: residual.best}),
        _judge(output, config.norm_output, [not config.norm_output], second),
        _judge_rope(target, draft, lambda rope: first(rope_parameters=rope)),
    )
    return found if evidence.num_rows >= MIN_ROWS else tuple(_open(item) for item in found)


def _open(item: Other) -> Other:
    """Too few rows for a verdict: as declared, and undecided."""
    return replace(item, best=item.declared, decided=False, changes={})


def _judge(name: str, declared: Any, others: list[Any], hits: Callable[[Any], torch.Tensor], factor: float = 1.0) -> Other:
    """`factor`: how many times as often as the declared value another one must be right to be taken."""
    found = {str(value): (value, hits(value)) for value in [declared, *others]}
    accuracies = {key: float(right.float().mean()) if len(right) else 0.0 for key, (_, right) in found.items()}
    own = found[str(declared)][1]
    top = max(found, key=lambda key: accuracies[key])
    better = top != str(declared) and p_value(found[top][1], own) <= SIGNIFICANT and accuracies[top] >= factor * accuracies[str(declared)]
    best, best_hits = found[top] if better else (declared, own)
    rivals = [right for key, (_, right) in found.items() if key != str(best)]
    return Other(name, declared, best, all(p_value(best_hits, right) <= SIGNIFICANT for right in rivals), accuracies)


def _judge_shift(target: Target, draft: Eagle3Draft, evidence: Evidence, taps: tuple[Tap, ...]) -> Other:
    """Row p with the state of p - shift; 0 is the project's pairing."""

    def hits(shift: int) -> torch.Tensor:
        return measure(draft, evidence, Hypothesis(taps, shift), evidence.first).first

    found = _judge("shift", 0, [-1, 1], hits, _SHIFT_FACTOR)
    if found.best >= 0:
        return found
    lens = lens_accuracy(target, evidence.first, [evidence.taps.index(tap) for tap in taps], found.best)
    seen = hits(found.best)
    if float(seen.float().mean()) >= TRAINED_ON_LATER and p_value(seen, lens) <= SIGNIFICANT:
        return found
    known = {f"{found.best} by the states alone": float(lens.float().mean())}
    return replace(found, best=0, decided=False, accuracies=found.accuracies | known)


def _judge_rope(target: Target, draft: Eagle3Draft, hits: Callable[[dict[str, Any]], torch.Tensor]) -> Other:
    """The declared RoPE, its theta without scaling, the target's own, and common thetas."""
    declared = dict(draft.config.rope_parameters)
    thetas = sorted({*_THETAS, float(declared["rope_theta"])})
    tried = [declared, *({"rope_type": "default", "rope_theta": theta} for theta in thetas)]
    own = getattr(target.config, "rope_parameters", None)
    if isinstance(own, dict) and "rope_theta" in own and own.get("partial_rotary_factor", 1.0) == 1.0:
        tried.append(dict(own))
    named = {_rope_name(rope): rope for rope in tried}
    own_name = _rope_name(declared)
    found = _judge("rope", own_name, [name for name in named if name != own_name], lambda name: hits(named[name]))
    return found if found.best == own_name else replace(found, changes={"rope_parameters": named[found.best]})


def _rope_name(rope: dict[str, Any]) -> str:
    kind = rope.get("rope_type", "default")
    scaling = "" if kind == "default" else f" {kind} factor {rope.get('factor')}"
    return f"theta {float(rope['rope_theta']):g}{scaling}"
