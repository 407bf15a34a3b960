"""H: names and shapes of the draft's tensors, beside what its config asks for."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.expected import expected_shapes, sidecar_config, vocabulary
from eyas.doctor.opening.plain import whole

_TRAINERS = "draft_model."
_BIASES = {
    "fc_bias": "fc.bias",
    "attention_bias": "midlayer.self_attn.q_proj.bias",
    "mlp_bias": "midlayer.mlp.gate_proj.bias",
    "qk_norm": "midlayer.self_attn.q_norm.weight",
}


def _keys(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    wanted = expected_shapes(draft)
    if wanted is None or not draft.weights.tensors:
        return untestable("config or weights say too little")
    missing = [name for name in wanted if name not in draft.tensors and not name.startswith(("input_norm", "fc_norm"))]
    missing += [name for flag, name in _BIASES.items() if draft.stated.get(flag) is True and not draft.has(name)]
    scales = [key for key in draft.spare if "scale" in key or "zero_point" in key]
    spare = [key for key in draft.spare if key not in scales and "expert" not in key and not _other_layer(key)]
    faults = []
    prefixed = [key for key in draft.keys.values() if key.startswith(draft.wrapper or _TRAINERS)]
    if prefixed:
        text = f"{len(prefixed)} tensors have the prefix of a trainer's own checkpoint, such as {prefixed[0]}: no engine looks there"
        faults.append(Fault("keys-differ", "draft", (Evidence(text),), "take the prefix off: eyas import and export", 0.75))
    if missing:
        text = f"{len(missing)} tensors are missing, such as {', '.join(missing[:3])}: engines leave them as they were initialised"
        faults.append(
            Fault(
                "keys-differ",
                "draft",
                (Evidence(text, {"missing": missing}),),
                "export the draft again with all of its tensors",
                0.85,
            )
        )
    if spare:
        text = f"{len(spare)} tensors are read by nobody, such as {', '.join(spare[:3])}"
        faults.append(
            Fault(
                "keys-differ",
                "draft",
                (Evidence(text, {"unread": spare}),),
                "rename them to what the reader looks for, or leave them out: eyas import and export",
                0.7,
            )
        )
    return confirmed(*faults) if faults else ruled_out("every tensor of such a head is there, and none besides")


def _other_layer(key: str) -> bool:
    return ".layers." in f".{key}" and "layers.0." not in key


def _shapes(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    wanted = expected_shapes(draft)
    if wanted is None:
        return untestable("the config states too few sizes")
    own, whole_ones = vocabulary(draft)
    hidden = whole(draft.stated.get("hidden_size"))
    if own and hidden:
        wanted["lm_head.weight"] = (own, hidden)
    if whole_ones and hidden:
        wanted["embed_tokens.weight"] = (whole_ones, hidden)
    wrong = [
        Evidence(
            f"{draft.keys[name]} is {list(found)}, and config.json asks for {list(shape)}", {"found": list(found), "wanted": list(shape)}
        )
        for name, shape in wanted.items()
        if ".self_attn." not in name and (found := draft.weights_shape(name)) is not None and found != shape
    ]
    if wrong:
        remedy = "use the config.json that was saved with these weights"
        return confirmed(Fault("shape-differs", "draft", tuple(wrong), remedy, 0.8))
    return ruled_out("all shapes are what config.json asks for")


def _tie(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    own, whole_ones = vocabulary(draft)
    meant = sidecar_config(draft).get("lm_head_source")
    if draft.layer.get("tie_word_embeddings") is True and meant != "embedding":
        reduced = own is not None and whole_ones is not None and own < whole_ones
        if reduced or draft.has("lm_head.weight"):
            text = f"tie_word_embeddings is true, but lm_head has {own} rows of its own of {whole_ones} tokens: loaders drop and refill it"
            return confirmed(Fault("tie-flag", "draft", (Evidence(text),), "set tie_word_embeddings to false", 0.65))
    return ruled_out("no head of its own is tied to an embedding")


HYPOTHESES = (
    Hypothesis(
        "keys-differ",
        "static",
        "tensors are missing or unread",
        ("draft",),
        "compare names with those of such a head",
        "some differ",
        _keys,
        prior=0.3,
    ),
    Hypothesis("shape-differs", "static", "shapes are not the config's", ("draft",), "compare shapes", "some differ", _shapes, prior=0.3),
    Hypothesis(
        "tie-flag",
        "static",
        "the head is said to be tied and is not",
        ("draft",),
        "read tie_word_embeddings",
        "set for a head of its own",
        _tie,
        prior=0.2,
    ),
)
