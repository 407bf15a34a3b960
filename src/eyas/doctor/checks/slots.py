"""C: the order in which states are concatenated, and the shape of the head."""

from __future__ import annotations

import re

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out
from eyas.doctor.opening.expected import expected_shapes, mla_sizes, sidecar_config
from eyas.doctor.opening.plain import number, whole

_ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "swish", "gelu_fast", "quick_gelu", "relu2")
_COMPARED = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "qk_norm", "fc_bias")


def _head_shape(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    wanted = expected_shapes(draft)
    if wanted is None:
        return ruled_out("the config states no sizes of heads")
    wrong = [
        Evidence(
            f"{draft.keys[name]} is {list(found)}; the config's heads ask for {list(shape)}",
            {"found": list(found), "wanted": list(shape)},
        )
        for name, shape in wanted.items()
        if ".self_attn." in name and (found := draft.weights_shape(name)) is not None and found != shape
    ]
    if wrong:
        return confirmed(Fault("head-shape", "draft", tuple(wrong), _heads_remedy(exam), weight=0.85, shadow=("architecture",)))
    heads, groups = whole(draft.stated.get("num_attention_heads")), whole(draft.stated.get("num_key_value_heads"))
    if heads and groups and heads % groups and mla_sizes(draft) is None:
        text = f"{heads} query heads do not divide over {groups} key/value heads"
        return confirmed(Fault("head-shape", "draft", (Evidence(text),), "use the config that was saved with the weights", 0.85))
    return ruled_out(f"q, k, v and o have the shapes of {heads} heads over {groups}")


def _heads_remedy(exam: Examination) -> str:
    draft = exam.draft
    assert draft is not None
    query, hidden = draft.weights_shape("midlayer.self_attn.q_proj.weight"), whole(draft.stated.get("hidden_size"))
    heads = whole(draft.stated.get("num_attention_heads"))
    if query and heads and query[0] % heads == 0 and hidden and query[0] // heads != hidden // heads:
        return f"set head_dim to {query[0] // heads} (q_proj has {query[0]} rows for {heads} heads)"
    return "use the config.json that was saved with these weights: heads and head_dim follow from q_proj and k_proj"


def _architecture(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    faults, layer = [], draft.layer
    layers = {int(match[1]) for key in draft.weights.tensors if (match := re.search(r"layers\.(\d+)\.", key))}
    count = layer.get("num_hidden_layers", 1)
    if len(layers) > 1 or (whole(count) and count != 1 and not draft.is_eyas):
        text = f"the draft has {max(len(layers), 1)} decoder layers in its weights and {count} in its config; an EAGLE-3 head has one"
        faults.append(Fault("architecture", "draft", (Evidence(text),), "set num_hidden_layers to 1, or export the draft's own layer", 0.7))
    act = draft.stated.get("hidden_act")
    if isinstance(act, str) and act not in _ACTIVATIONS:
        faults.append(Fault("architecture", "draft", (Evidence(f"hidden_act {act!r} is no activation"),), "set hidden_act to silu", 0.7))
    eps = number(draft.stated.get("rms_norm_eps"))
    if eps is not None and eps > 1e-2:
        text = f"rms_norm_eps is {eps:g}; models have 1e-5 or 1e-6, and norms with so much more let no small state through"
        faults.append(Fault("architecture", "draft", (Evidence(text),), "set rms_norm_eps to what the target has", 0.7))
    experts = [key for key in draft.spare if "expert" in key]
    if experts:
        text = f"the layer has experts, such as {experts[0]}; an EAGLE-3 head's MLP is plain"
        faults.append(Fault("architecture", "draft", (Evidence(text),), "serve it by the project that made it", 0.7))
    faults += _contradictions(exam)
    return confirmed(*faults) if faults else ruled_out("one layer, with an activation that exists, as stated elsewhere too")


def _contradictions(exam: Examination) -> list[Fault]:
    draft = exam.draft
    assert draft is not None
    beside = sidecar_config(draft)
    found = []
    for name in _COMPARED:
        here, there = draft.stated.get(name), beside.get(name)
        if here is not None and there is not None and here != there and not isinstance(here, dict):
            text = f"{name} is {here!r} in config.json and {there!r} in eyas_wiring.json, which was written with the weights"
            code = "head-shape" if "head" in name else "architecture"
            found.append(Fault(code, "draft", (Evidence(text),), f"set {name} to {there!r}", 0.75))
    return found


def _engine(exam: Examination) -> Outcome:
    from eyas.doctor.engine_view import head_faults

    return head_faults(exam, ("architecture-engine",))


def _halves(exam: Examination) -> Outcome:
    from eyas.doctor.replay.layout import try_halves

    return try_halves(exam)


def _columns(exam: Examination) -> Outcome:
    from eyas.doctor.replay.layout import try_columns

    return try_columns(exam)


def _computed(exam: Examination) -> Outcome:
    from eyas.doctor.replay.layout import try_architecture

    return try_architecture(exam)


HYPOTHESES = (
    Hypothesis(
        "head-shape",
        "static",
        "the config's heads are not those of the weights",
        ("draft",),
        "compare the shapes of q, k, v and o with the config",
        "a shape differs",
        _head_shape,
        prior=0.3,
    ),
    Hypothesis(
        "architecture",
        "static",
        "the layer is of another kind than the config says",
        ("draft",),
        "count layers, look for experts, and compare with the wiring beside it",
        "something differs",
        _architecture,
        prior=0.2,
    ),
    Hypothesis(
        "architecture-engine",
        "static",
        "this engine version cannot run this kind of draft",
        ("draft", "target", "engine"),
        "look up what the draft needs in the engine's table",
        "something is not honoured",
        _engine,
        prior=0.3,
    ),
    Hypothesis(
        "slot-order",
        "replay",
        "the slots of fc stand in another order than the states",
        ("draft", "replay"),
        "try every order of fc's column blocks and measure",
        "accuracy rises in another order",
        _columns,
        prior=0.45,
        seconds=2.0,
    ),
    Hypothesis(
        "half-order",
        "replay",
        "attention's input has its halves swapped",
        ("draft", "replay"),
        "swap the halves of q, k and v's columns and measure",
        "accuracy rises",
        _halves,
        prior=0.2,
        seconds=0.5,
    ),
    Hypothesis(
        "architecture",
        "replay",
        "the layer computes something else than it was trained in",
        ("draft", "replay"),
        "try other heads of the same shapes, activations and layouts of RoPE, and measure",
        "accuracy rises",
        _computed,
        prior=0.15,
        seconds=3.0,
    ),
)
