"""B: where norms stand, what is fed back, and how norm weights are stored."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, suspected
from eyas.doctor.opening.draft import SWITCHES
from eyas.doctor.opening.expected import sidecar_config

_BY_TENSOR = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
_BY_REPLAY = ("norm-placement", "norm-feedback")


def _flags(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    faults, stated = [], draft.stated
    for flag, tensor in _BY_TENSOR.items():
        said, there = stated.get(flag), draft.has(tensor)
        if draft.weights.tensors and said is not None and bool(said) != there:
            text = f"{flag} is {said}, but the weights {'hold' if there else 'lack'} {tensor}"
            faults.append(Fault("norm-flags", "draft", (Evidence(text),), f"set {flag} to {str(there).lower()}", 0.8, shadow=_BY_REPLAY))
        elif draft.weights.tensors and said is None and there and draft.config.value:
            text = f"the weights hold {tensor}, but config.json has no {flag}: an engine then leaves the norm out"
            faults.append(Fault("norm-flags", "draft", (Evidence(text),), f"set {flag} to true", 0.8, shadow=_BY_REPLAY))
    count = sum(name.startswith("fc_norm.") for name in draft.tensors)
    if count and draft.num_slots and count != draft.num_slots:
        text = f"there are {count} norms of fc_norm for {draft.num_slots} slots"
        faults.append(Fault("norm-flags", "draft", (Evidence(text),), "export the draft again with all of its norms", 0.8))
    faults += _contradictions(exam)
    return confirmed(*faults) if faults else ruled_out("the norm switches fit the weights and the wiring")


def _contradictions(exam: Examination) -> list[Fault]:
    """Switches that the wiring beside the checkpoint, or the config there, states otherwise."""
    draft = exam.draft
    assert draft is not None
    found = []
    for flag in SWITCHES:
        if flag == "norm_output" and draft.dialect == "specforge":  # means another thing there
            continue
        here = draft.stated.get(flag, None if draft.is_eyas else False)
        for where, said in (("the wiring", draft.said.get(flag)), ("eyas_wiring.json", sidecar_config(draft).get(flag))):
            if isinstance(said, bool) and here is not None and here != said and draft.config.value:
                text = f"{flag} is {here} in config.json{'' if flag in draft.stated else ' (no such key)'}, and {said} in {where}"
                remedy = f"set {flag} to {str(said).lower()} in config.json, which is what was written with the weights"
                code = "norm-feedback" if flag == "norm_output" else "norm-flags"
                found.append(Fault(code, "draft", (Evidence(text),), remedy, 0.8, shadow=tuple(c for c in _BY_REPLAY if c != code)))
                break
    return found


def _convention(exam: Examination) -> Outcome:
    from eyas.doctor.weights import norm_means

    means = norm_means(exam)
    if not means:
        return ruled_out("the draft has no norm weights that can be read")
    lowest = min(means, key=lambda name: means[name])
    negative = {name: value for name, value in means.items() if value < -0.02}
    if negative or max(means.values()) < 0.2:
        text = f"norm weights have means of {', '.join(f'{value:.2f} ({name})' for name, value in sorted(means.items())[:4])}"
        if negative or all(abs(value) < 0.2 for value in means.values()):
            fault = Fault("norm-convention", "draft", (Evidence(text, means),), _ADD_ONE, weight=0.8)
            return confirmed(fault)
        return suspected(text, **means)
    return ruled_out(f"norm weights have positive means, the lowest {means[lowest]:.2f} ({lowest})", **means)


_ADD_ONE = "add 1 to the weights of these norms: they are stored as differences from 1, and engines multiply by them as they are"


def _placement(exam: Examination) -> Outcome:
    from eyas.doctor.replay.norms import try_placement

    return try_placement(exam)


def _feedback(exam: Examination) -> Outcome:
    from eyas.doctor.replay.norms import try_feedback

    return try_feedback(exam)


def _offset(exam: Examination) -> Outcome:
    from eyas.doctor.replay.norms import try_offset

    return try_offset(exam)


def _state(exam: Examination) -> Outcome:
    from eyas.doctor.replay.norms import try_normed_states

    return try_normed_states(exam)


def _engine(exam: Examination) -> Outcome:
    from eyas.doctor.engine_view import head_faults

    return head_faults(exam, ("norm-engine",))


HYPOTHESES = (
    Hypothesis(
        "norm-flags",
        "static",
        "the config's norm switches are not those of the weights",
        ("draft",),
        "compare switches with tensors and with the wiring beside them",
        "a switch differs",
        _flags,
        prior=0.3,
    ),
    Hypothesis(
        "norm-engine",
        "static",
        "this engine version ignores a norm switch",
        ("draft", "target", "engine"),
        "look the switches up in the engine's table",
        "one is not honoured",
        _engine,
        prior=0.3,
    ),
    Hypothesis(
        "norm-convention",
        "weights",
        "norm weights are stored as differences from 1",
        ("draft",),
        "look at the means of all norm weights",
        "they lie near 0 or below",
        _convention,
        prior=0.15,
        seconds=0.2,
    ),
    Hypothesis(
        "norm-convention",
        "replay",
        "some norm weights lack a 1, or have it twice",
        ("draft", "replay"),
        "add or take 1 for each group of norms and measure",
        "accuracy rises",
        _offset,
        prior=0.15,
        seconds=1.0,
    ),
    Hypothesis(
        "norm-placement",
        "replay",
        "a norm is applied where training had none, or the reverse",
        ("draft", "replay"),
        "toggle every norm switch and measure",
        "accuracy rises under another setting",
        _placement,
        prior=0.4,
        seconds=1.0,
    ),
    Hypothesis(
        "norm-feedback",
        "replay",
        "the state fed back into later steps is normed where it was not in training, or the reverse",
        ("draft", "replay"),
        "toggle norm_output and measure step 1",
        "step 1 gets better, step 0 stays",
        _feedback,
        prior=0.4,
        seconds=1.0,
    ),
    Hypothesis(
        "norm-state",
        "replay",
        "the draft was trained on states that had gone through the final norm",
        ("draft", "replay"),
        "put the target's final norm in front of fc, slot by slot, and measure",
        "accuracy rises",
        _state,
        prior=0.15,
        seconds=1.0,
    ),
)
