"""E: by which frequencies positions turn, and how far they reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, suspected
from eyas.doctor.opening.expected import sidecar_config
from eyas.doctor.opening.plain import inside, number, whole

_BY_REPLAY = ("rope-theta", "rope-scaling")
_BOTH = "write rope_theta at top level, in rope_parameters and (scaled) in rope_scaling: eyas export writes all of them"
DEFAULT_THETA = 10000.0


def thetas(config: Mapping[str, Any]) -> dict[str, float]:
    """Every theta that a config names, by its place."""
    places = {
        "rope_theta": config.get("rope_theta"),
        "rope_parameters.rope_theta": inside(config, "rope_parameters", "rope_theta"),
        "rope_scaling.rope_theta": inside(config, "rope_scaling", "rope_theta"),
    }
    return {place: value for place, part in places.items() if (value := number(part)) is not None}


def kinds(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for place in ("rope_parameters", "rope_scaling"):
        value = config.get(place)
        if isinstance(value, Mapping) and value:
            found[place] = str(value.get("rope_type", value.get("type", "default")))
    return found


# What each kind of RoPE cannot be worked out without, as transformers reads it.
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "deepseek_yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "mrope": (),
    "proportional": (),
}


def _lost(scaling: Mapping[str, Any], kind: str) -> list[str]:
    return [name for name in _NEEDED.get(kind, ()) if scaling.get(name) is None]


def _nameless(scaling: Mapping[str, Any]) -> bool:
    return "factor" in scaling and "rope_type" not in scaling and "type" not in scaling


def _schema(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    layer = draft.layer
    here, kind = thetas(layer), kinds(layer)
    bad = {
        place: layer[place] for place in ("rope_parameters", "rope_scaling") if layer.get(place) not in (None, {}) and not kind.get(place)
    }
    odd = [value for value in (layer.get("rope_theta"), inside(layer, "rope_parameters", "rope_theta")) if value is not None]
    if bad or any(number(value) is None or float(value) <= 0 for value in odd):
        text = f"RoPE's keys cannot be read: {bad or odd}"
        return confirmed(Fault("rope-schema", "draft", (Evidence(text),), _BOTH, 0.75))
    lacking = [f"{place} is {name}, and lacks {', '.join(absent)}" for place, name in kind.items() if (absent := _lost(layer[place], name))]
    lacking += [f"{place} is {name!r}, which no reader knows" for place, name in kind.items() if name not in _NEEDED]
    lacking += [f"{place} has a factor, and names no kind" for place in kind if _nameless(layer[place])]
    share = number(layer.get("partial_rotary_factor"))
    if share is not None and share != 1.0:
        lacking.append(f"partial_rotary_factor is {share:g}, and EAGLE-3 heads turn all columns of a head")
    if lacking:
        return confirmed(Fault("rope-schema", "draft", tuple(Evidence(f"config.json: {text}") for text in lacking), _BOTH, 0.75))
    if len(set(here.values())) > 1:
        text = "config.json names two thetas: " + ", ".join(f"{place} = {value:g}" for place, value in here.items())
        return confirmed(
            Fault("rope-schema", "draft", (Evidence(text, here),), "keep the theta of training in all places", 0.75, shadow=_BY_REPLAY)
        )
    if len(set(kind.values())) > 1:
        text = "config.json names two kinds of RoPE: " + ", ".join(f"{place} = {value}" for place, value in kind.items())
        return confirmed(
            Fault("rope-schema", "draft", (Evidence(text),), "keep the kind of training in both places", 0.7, shadow=_BY_REPLAY)
        )
    if draft.is_eyas or not draft.config.value:
        return ruled_out(f"one theta is named: {here or 'none'}")
    theirs = exam.target.theta if exam.target else None
    if not here and theirs not in (None, DEFAULT_THETA):
        text = f"config.json names no theta, so readers take 10000; the target turns by {theirs:g}"
        return confirmed(Fault("rope-schema", "draft", (Evidence(text),), _BOTH, 0.7, shadow=_BY_REPLAY))
    lost = "rope_theta" not in here and any(value != DEFAULT_THETA for value in here.values())
    lost |= "rope_scaling" not in kind and kind.get("rope_parameters", "default") != "default"
    if lost:
        text = (
            f"theta {list(here.values())}, kind {list(kind.values())} stand under rope_parameters only; older readers take 10000, unscaled"
        )
        return confirmed(Fault("rope-schema", "draft", (Evidence(text),), _BOTH, 0.55, shadow=_BY_REPLAY))
    return ruled_out(f"theta and kind stand wherever a reader looks: {here}")


def _stated(exam: Examination) -> Outcome:
    """The config against the frequencies that the wiring recorded, and against the config beside it."""
    draft = exam.draft
    assert draft is not None
    here, beside = _rope(draft.stated.get("rope_parameters") or draft.layer), _rope(sidecar_config(draft).get("rope_parameters"))
    recorded = _recorded_theta(draft.said.get("rope_inv_freq"))
    faults = []
    scaled = here.get("kind", "default") != "default"
    if beside and here and here != beside:
        text = f"config.json has RoPE {here}, eyas_wiring.json, written with the weights, has {beside}"
        code = "rope-theta" if here.get("theta") != beside.get("theta") else "rope-scaling"
        faults.append(Fault(code, "draft", (Evidence(text),), f"set RoPE to {beside}", 0.75))
    elif recorded and here.get("theta") and not scaled and abs(recorded / here["theta"] - 1) > 1e-3:
        text = f"config.json turns by theta {here['theta']:g}; the frequencies in the wiring are those of theta {recorded:g}"
        faults.append(
            Fault(
                "rope-theta",
                "draft",
                (Evidence(text, {"config": here["theta"], "wiring": recorded}),),
                f"set rope_theta to {recorded:g}",
                0.75,
            )
        )
    if faults:
        return confirmed(*faults)
    theirs = exam.target.theta if exam.target else None
    if theirs and here.get("theta") and here["theta"] != theirs:
        return suspected(f"the draft turns by theta {here['theta']:g}, the target by {theirs:g}", draft=here["theta"], target=theirs)
    return ruled_out(f"RoPE as recorded: {here or 'not stated'}")


def _rope(value: Any) -> dict[str, Any]:
    """theta, kind and factor of a config or of its rope_parameters."""
    if not isinstance(value, Mapping):
        return {}
    inner = value.get("rope_parameters") if isinstance(value.get("rope_parameters"), Mapping) else value.get("rope_scaling")
    inner = inner if isinstance(inner, Mapping) else value
    found: dict[str, Any] = {"theta": number(value.get("rope_theta")) or number(inner.get("rope_theta"))}
    found |= {"kind": str(inner.get("rope_type", inner.get("type", "default"))), "factor": number(inner.get("factor"))}
    return {name: part for name, part in found.items() if part is not None}


def _recorded_theta(frequencies: Any) -> float | None:
    """Of unscaled RoPE: frequency i of n is theta^(-i/n)."""
    if not isinstance(frequencies, list) or len(frequencies) < 2 or number(frequencies[1]) in (None, 0.0) or frequencies[0] != 1.0:
        return None
    return float(frequencies[1]) ** -len(frequencies)


def _range(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    own = whole(draft.stated.get("max_position_embeddings"))
    theirs = whole(exam.target.text.get("max_position_embeddings")) if exam.target else None
    longest = max(exam.dump.lengths, default=0) if exam.dump else 0
    beside = whole(sidecar_config(draft).get("max_position_embeddings"))
    if own is None:
        return ruled_out("the draft names no end of its positions")
    if longest > own:
        text = f"the draft's positions end at {own}; the longest text of the dump has {longest} tokens"
        return confirmed(Fault("rope-range", "draft", (Evidence(text, {"draft": own, "longest": longest}),), _REACH, 0.6))
    if theirs and own < theirs and (draft.is_eyas or (beside or own) > own or own < 512):
        text = f"the draft's positions end at {own}, the target's at {theirs}: engines stop drafting there"
        return confirmed(Fault("rope-range", "draft", (Evidence(text, {"draft": own, "target": theirs}),), _REACH, 0.6))
    if theirs and own < theirs:
        return suspected(f"the draft's positions end at {own}, the target's at {theirs}", draft=own, target=theirs)
    return ruled_out(f"the draft's positions reach {own}, the target's {theirs}")


_REACH = "set max_position_embeddings to the target's; if the draft was trained on short texts only, train it on longer ones"


def _frequencies(exam: Examination) -> Outcome:
    from eyas.doctor.weights import stored_frequencies

    return stored_frequencies(exam)


def _replayed(exam: Examination) -> Outcome:
    from eyas.doctor.replay.rope import try_rope

    return try_rope(exam)


HYPOTHESES = (
    Hypothesis(
        "rope-schema",
        "static",
        "RoPE stands where some readers do not look for it, or twice",
        ("draft",),
        "read rope_theta, rope_parameters and rope_scaling",
        "they differ, or one is missing",
        _schema,
        prior=0.2,
    ),
    Hypothesis(
        "rope-theta",
        "static",
        "the config's RoPE is not the one of training",
        ("draft",),
        "compare with the recorded frequencies",
        "another theta or scaling",
        _stated,
        prior=0.25,
    ),
    Hypothesis(
        "rope-range",
        "static",
        "texts are longer than the draft's positions",
        ("draft",),
        "compare max_position_embeddings with target and texts",
        "the draft's end is nearer",
        _range,
        prior=0.15,
    ),
    Hypothesis(
        "rope-theta",
        "weights",
        "frequencies that come with the weights are not the config's",
        ("draft",),
        "work out the frequencies by transformers' own code and compare",
        "they differ",
        _frequencies,
        prior=0.1,
        seconds=0.5,
    ),
    Hypothesis(
        "rope-theta",
        "replay",
        "the draft was trained with another RoPE",
        ("draft", "replay"),
        "sweep theta and try the target's own scaling, and measure",
        "it predicts better with another one",
        _replayed,
        prior=0.3,
        seconds=3.0,
    ),
)
