"""N: number formats and quantisation."""

from __future__ import annotations

from collections.abc import Mapping

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, suspected
from eyas.doctor.opening.headers import FLOATS
from eyas.doctor.opening.plain import read_object

_BESIDE = "hf_quant_config.json"  # Model-Optimizer's; engines read it where config.json says nothing
_OF_DTYPE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def _config(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    found = {
        where: value
        for where, part in (("config.json", draft.config.value), ("transformer_layer_config", draft.layer))
        if isinstance(value := part.get("quantization_config", part.get("compression_config")), Mapping) and value
    }
    beside = read_object(draft.folder / _BESIDE).value.get("quantization")
    if isinstance(beside, Mapping) and beside.get("quant_algo"):
        found[_BESIDE] = {"quant_method": beside["quant_algo"]}
    if not found:
        return ruled_out("the draft's config names no quantisation")
    where, value = next(iter(found.items()))
    floats = [info.dtype for name, info in draft.tensors.items() if name.startswith("midlayer.") and len(info.shape) == 2]
    plain = bool(floats) and all(dtype in FLOATS for dtype in floats)
    method = value.get("quant_method", value.get("format", "?"))
    theirs = exam.target.config.value.get("quantization_config") if exam.target else None
    same = "; it is the target's own, copied" if theirs is not None and theirs == value else ""
    text = f"{where} says {method}, and the layer's weights are {', '.join(sorted(set(floats))) or 'not there'}{same}"
    if plain:
        return confirmed(
            Fault(
                "quantization-config",
                "draft",
                (Evidence(text),),
                f"remove {_BESIDE}" if where == _BESIDE else "remove quantization_config from the draft's config",
                0.75,
            )
        )
    return confirmed(
        Fault(
            "quantization-config",
            "draft",
            (Evidence(text),),
            "export the draft in bf16: no reader here runs it quantised",
            0.6,
        )
    )


def _scales(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    scales = [key for key in draft.spare if "scale" in key or "zero_point" in key or "qzeros" in key]
    packed = [
        f"{draft.keys[name]} ({info.dtype})"
        for name, info in draft.tensors.items()
        if name not in ("d2t", "t2d") and info.dtype not in FLOATS
    ]
    faults = []
    if scales:
        text = f"{len(scales)} scales are read by nobody, such as {scales[0]}"
        faults.append(
            Fault(
                "scales-unread",
                "draft",
                (Evidence(text),),
                "store the weights with their scales multiplied in, as bf16",
                0.75,
                covers=("keys-differ",),
            )
        )
    if packed:
        text = f"weights are stored as whole numbers or in 8 bits without a format to read them by, such as {packed[0]}"
        faults.append(Fault("scales-unread", "draft", (Evidence(text),), "export the draft in bf16", 0.75, covers=("dtype-differs",)))
    return confirmed(*faults) if faults else ruled_out("all weights are plain floating-point numbers")


def _whole(exam: Examination) -> Outcome:
    from eyas.doctor.weights import whole_numbers

    return whole_numbers(exam)


def _dtype(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    said = draft.config.value.get("dtype", draft.config.value.get("torch_dtype", draft.layer.get("torch_dtype")))
    found = {info.dtype for name, info in draft.tensors.items() if name not in ("d2t", "t2d") and info.dtype in FLOATS}
    wanted = _OF_DTYPE.get(str(said))
    if wanted and found and wanted not in found:
        text = f"config.json says {said}, and the weights are {', '.join(sorted(found))}: loaders cast them, or take twice the memory"
        return confirmed(Fault("dtype-differs", "draft", (Evidence(text),), f"save the weights as {said}", 0.4))
    if len(found) > 1:
        return suspected(f"weights are stored in {', '.join(sorted(found))}")
    return ruled_out(f"weights are stored in {', '.join(sorted(found)) or 'no float format'}, as said")


def _finite(exam: Examination) -> Outcome:
    from eyas.doctor.weights import finite

    return finite(exam)


def _everything(exam: Examination) -> Outcome:
    from eyas.doctor.reported import extremes

    return extremes(exam, "accepts-everything")


HYPOTHESES = (
    Hypothesis(
        "scales-unread",
        "weights",
        "quantised weights were stored without their scales",
        ("draft",),
        "look for matrices of whole numbers",
        "there is one",
        _whole,
        prior=0.05,
        seconds=0.1,
    ),
    Hypothesis(
        "accepts-everything",
        "static",
        "the server accepts whatever is proposed",
        ("readings",),
        "compare the reported acceptance length with 1 and with K + 1",
        "all rounds are full",
        _everything,
        prior=0.1,
    ),
    Hypothesis(
        "dtype-differs",
        "static",
        "the weights' number format is not the config's",
        ("draft",),
        "compare headers and config",
        "they differ",
        _dtype,
        prior=0.05,
    ),
    Hypothesis(
        "quantization-config",
        "static",
        "the draft inherited a quantisation config",
        ("draft",),
        "compare it with the weights' formats",
        "the weights are not quantised",
        _config,
        prior=0.2,
    ),
    Hypothesis(
        "scales-unread",
        "static",
        "scales of quantised weights are not read",
        ("draft",),
        "look for scales and packed weights",
        "some are there",
        _scales,
        prior=0.2,
    ),
    Hypothesis(
        "weights-not-finite",
        "weights",
        "weights are NaN, infinite or absurd",
        ("draft",),
        "read every weight",
        "some are",
        _finite,
        prior=0.2,
        seconds=0.3,
    ),
)
