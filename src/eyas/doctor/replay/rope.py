"""RoPE swept: common thetas, the target's own, with its scaling and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eyas.doctor.hypothesis import Outcome
from eyas.doctor.replay.trial import Option, bench_of, try_options

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_THETAS = (1e3, 1e4, 1e5, 2.5e5, 5e5, 1e6, 5e6, 8e6, 1e7)
_SUSPECTS = ("rope-theta", "rope-schema", "rope-scaling", "files-mixed")


def try_rope(exam: Examination) -> Outcome:
    bench = bench_of(exam)
    here = dict(bench.subject.config.rope_parameters)
    tried: dict[str, dict[str, Any]] = {}
    for rope in _candidates(exam, here):
        tried.setdefault(_name(rope), rope)
    tried.pop(_name(here), None)
    options = []
    for name, rope in tried.items():
        code = "rope-theta" if rope.get("rope_theta") != here.get("rope_theta") else "rope-scaling"
        options.append(
            Option(f"RoPE of {name}", bench.subject.configured(rope_parameters=rope), f"set RoPE to {rope} in every place", code)
        )
    return try_options(exam, "rope-theta", options, suspected=exam.suspects(*_SUSPECTS), shadow=())


def _candidates(exam: Examination, here: dict[str, Any]) -> list[dict[str, Any]]:
    thetas = {*_THETAS, float(here.get("rope_theta", 1e4))}
    found: list[dict[str, Any]] = []
    own = getattr(exam.parts.config, "rope_parameters", None) if exam.parts else None
    if isinstance(own, dict):
        own = own.get("full_attention", own)
        if isinstance(own, dict) and "rope_theta" in own and own.get("partial_rotary_factor", 1.0) == 1.0:
            found.append(dict(own))
            thetas.add(float(own["rope_theta"]))
    recorded = exam.draft.said.get("rope_inv_freq") if exam.draft else None
    if isinstance(recorded, list) and len(recorded) > 1 and isinstance(recorded[1], float) and recorded[1] > 0:
        thetas.add(float(f"{recorded[1] ** -len(recorded):.6g}"))
    found += [{"rope_type": "default", "rope_theta": theta} for theta in sorted(thetas)]
    if here.get("rope_type", "default") != "default":
        found += [{**here, "rope_theta": theta} for theta in sorted(thetas)]
    elif exam.suspects(*_SUSPECTS):
        found += [{"rope_type": "linear", "factor": factor, "rope_theta": here["rope_theta"]} for factor in (2.0, 4.0, 8.0)]
    return found


def _name(rope: dict[str, Any]) -> str:
    kind = rope.get("rope_type", "default")
    return f"theta {float(rope['rope_theta']):g}" + ("" if kind == "default" else f", {kind} factor {rope.get('factor')}")
