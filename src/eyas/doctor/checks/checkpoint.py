"""H: config and files of the draft, and whether they belong together."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.plain import number, whole

_COPY = "copy the folder again, whole, from where it was written"
_INTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "target_hidden_size",
)
_BOOLS = (
    "use_cache",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "norm_before_fc",
    "fc_norm",
    "norm_before_residual",
    "norm_output",
)


def _config(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    if draft.config.problem:
        return confirmed(Fault("config-broken", "draft", (Evidence(draft.config.problem),), _COPY, 0.9))
    faults = []
    for name, found in (("wiring.json", draft.wiring), ("eyas_wiring.json", draft.sidecar)):
        if found.there and found.problem:
            faults.append(
                Fault(
                    "config-broken",
                    "draft",
                    (Evidence(found.problem),),
                    f"copy {name} again from where it was written",
                    0.8,
                )
            )
    layer = draft.layer
    wrong = [f"{key} = {layer[key]!r}, which is no positive whole number" for key in _INTS if key in layer and _bad_int(layer[key])]
    wrong += [
        f"{key} = {layer[key]!r}, which is neither true nor false" for key in _BOOLS if key in layer and not isinstance(layer[key], bool)
    ]
    eps = layer.get("rms_norm_eps")
    wrong += [f"rms_norm_eps = {eps!r}, which is no positive number"] if eps is not None and not (number(eps) or 0) > 0 else []
    if wrong:
        evidence = tuple(Evidence("config.json: " + text) for text in wrong)
        faults.append(
            Fault(
                "config-broken",
                "draft",
                evidence,
                "give these keys values of their type, or leave them out",
                0.75,
            )
        )
    if not draft.is_eyas and not any(key in layer for key in ("hidden_size", "num_attention_heads")):
        text = f"config.json describes no decoder layer: it has {sorted(draft.config.value)[:5]}"
        faults.append(Fault("config-broken", "draft", (Evidence(text),), _COPY, 0.75))
    return confirmed(*faults) if faults else ruled_out("config.json is an object whose values are of their types")


def _bad_int(value: object) -> bool:
    return value is not None and whole(value) is None


def _weights(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    if draft.weights.problems:
        evidence = tuple(Evidence(text) for text in draft.weights.problems[:4])
        return confirmed(Fault("weights-broken", "draft", evidence, _COPY, 0.95, covers=("keys-differ", "head-missing", "map-missing")))
    if not draft.weights.tensors:
        return untestable(f"the weights are pickled ({', '.join(draft.weights.pickled[:3])}): they have no header")
    return ruled_out(f"{len(draft.weights.tensors)} tensors in {len(draft.weights.files)} files, every byte there")


def _target_weights(exam: Examination) -> Outcome:
    """Shards that are not there are lawful: a target may be examined by its parts."""
    target = exam.target
    assert target is not None
    lawful = ("is not there", "there are no weights", "lies in two files")  # the last: one model in two formats
    damaged = [text for text in target.weights.problems if not any(words in text for words in lawful)]
    if damaged:
        evidence = tuple(Evidence(f"the target's {text}") for text in damaged[:4])
        return confirmed(Fault("weights-broken", "target", evidence, "copy the target again, whole", 0.95, covers=("target-head",)))
    return ruled_out(f"{len(target.weights.files)} files of the target's weights, every byte there")


def _target_fits(exam: Examination) -> Outcome:
    """Also what headers do not show: tensors that the config asks for, or does not, and numbers that are none."""
    if exam.loaded_target is not None:
        return ruled_out("the target loads: its weights are what its config asks for")
    if not exam.target_unfit:
        return untestable(exam.why_no_target)
    remedy = "copy the target again, whole: config.json and weights of one checkpoint"
    return confirmed(Fault("weights-broken", "target", (Evidence(exam.why_no_target),), remedy, 0.9))


def _mixed(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    from eyas.doctor.contract import written_with

    return written_with(draft)


def _copies(exam: Examination) -> Outcome:
    from eyas.doctor.weights import second_copy

    return second_copy(exam)


def _other_target(exam: Examination) -> Outcome:
    from eyas.doctor.contract import same_target

    return same_target(exam)


def _untrained(exam: Examination) -> Outcome:
    from eyas.doctor.weights import untrained

    return untrained(exam)


def _without(exam: Examination) -> Outcome:
    from eyas.doctor.replay.untrained import try_parts

    return try_parts(exam)


def _loads(exam: Examination) -> Outcome:
    from eyas.doctor.contract import loads

    return loads(exam)


HYPOTHESES = (
    Hypothesis(
        "config-broken",
        "static",
        "the config cannot be used",
        ("draft",),
        "read config.json and its values' types",
        "damaged or odd",
        _config,
        prior=0.3,
    ),
    Hypothesis(
        "weights-broken",
        "static",
        "weights are missing or cut short",
        ("draft",),
        "read every header",
        "bytes or files are missing",
        _weights,
        prior=0.3,
    ),
    Hypothesis(
        "weights-broken",
        "static",
        "the target's weights are damaged",
        ("target",),
        "read every header",
        "bytes are missing",
        _target_weights,
        prior=0.2,
    ),
    Hypothesis(
        "files-mixed",
        "static",
        "config, wiring and weights are of different drafts",
        ("draft",),
        "compare the hash in the weights with the wiring",
        "they differ",
        _mixed,
        prior=0.2,
    ),
    Hypothesis(
        "files-mixed",
        "weights",
        "the folder holds two drafts, one in each format",
        ("draft",),
        "compare the tensors of safetensors and pickled files",
        "some differ",
        _copies,
        prior=0.05,
        seconds=0.1,
    ),
    Hypothesis(
        "other-target",
        "static",
        "draft or dump belong to another target",
        ("target",),
        "compare sizes and layers",
        "they differ",
        _other_target,
        prior=0.2,
    ),
    Hypothesis(
        "weights-untrained",
        "weights",
        "a weight was never trained or loaded",
        ("draft",),
        "look for constants, zeros and fresh noise",
        "one is found",
        _untrained,
        prior=0.15,
        seconds=0.5,
    ),
    Hypothesis(
        "weights-untrained",
        "replay",
        "a matrix is as it was initialised, or of another training",
        ("draft", "replay"),
        "put other noise in the place of matrices like noise, leave out branch by branch, and measure",
        "the draft does not miss one of them",
        _without,
        prior=0.3,
        seconds=0.3,
        last=True,
    ),
    Hypothesis(
        "weights-broken",
        "replay",
        "the target's weights do not fit its config",
        ("target",),
        "load the target",
        "tensors are missing, not read, or of another shape; or numbers are none",
        _target_fits,
        prior=0.1,
        seconds=3.0,
    ),
    Hypothesis(
        "not-loadable",
        "weights",
        "the draft cannot be loaded for a reason that no other test names",
        ("draft",),
        "load it by the strict reader",
        "it refuses",
        _loads,
        prior=0.05,
        seconds=1.0,
    ),
)
