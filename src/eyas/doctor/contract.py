"""Do the exhibits belong together, by what is written in them: hashes, sizes, tokenizer and template, field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eyas.doctor.catalog import CATALOG
from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.opening.draft import DraftFiles
from eyas.doctor.opening.headers import read_header
from eyas.doctor.opening.plain import whole
from eyas.errors import UserError
from eyas.wiring import WIRING_HASH, Difference, Wiring

_FIELDS = {
    "tokenizer_hash": "tokenizer-differs",
    "pairing": "pair-shift",
    "num_target_layers": "other-target",
    "target_hidden_size": "other-target",
    "target_vocab_size": "other-target",
    "chat_template_hash": "template-differs",
}
# Everything that an edit of a draft's files can be: whatever of it is found is nearer to the cause than the hash.
_EDITS = tuple(code for code, row in CATALOG.items() if row.kind in "ABCDEFG")


def parsed(value: Mapping[str, Any], where: str) -> Wiring | str:
    """The wiring, or what is wrong with it."""
    try:
        return Wiring.from_json(value, where)
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:  # values of any kind stand in a damaged file
        return f"{where}: {type(error).__name__}: {error}"


def written_with(draft: DraftFiles) -> Outcome:
    """The hash that the weights carry, against the wiring that lies beside them."""
    if not draft.said:
        return untestable("no wiring comes with the draft")
    wiring = parsed(draft.said, "the draft's wiring")
    if isinstance(wiring, str):
        fault = Fault(
            "files-mixed", "draft", (Evidence(f"the wiring cannot be read: {wiring}"),), _COPY, 0.6, shadow=(*_EDITS, "config-broken")
        )
        return confirmed(fault)
    trace = next((draft.folder / name for name in ("trace.safetensors", "eyas_trace.dat") if (draft.folder / name).is_file()), None)
    problem = read_header(trace)[2] if trace is not None else None
    if problem is not None:
        return confirmed(Fault("files-mixed", "draft", (Evidence(f"the draft's trace: {problem}"),), _COPY, 0.6))
    written = draft.weights.metadata.get(WIRING_HASH)
    if written is None:
        return untestable("the weights carry no hash of a wiring")
    if written != wiring.hash():
        text = f"the weights were written with wiring {written[:12]}; beside them lies {wiring.hash()[:12]}: one was edited or replaced"
        return confirmed(Fault("files-mixed", "draft", (Evidence(text),), _COPY, 0.5, shadow=_EDITS))
    return ruled_out(f"weights and wiring carry the same hash {written[:12]}")


_COPY = "copy wiring, config and weights again from the folder in which they were written together"


def same_target(exam: Examination) -> Outcome:
    target = exam.target
    assert target is not None
    if target.config.problem:
        fault = Fault("config-broken", "target", (Evidence(f"the target's {target.config.problem}"),), "copy the target again, whole", 0.9)
        return confirmed(fault)
    lost = [name for name in ("model_type",) if not isinstance(target.config.value.get(name), str)]
    lost += [name for name, value in (("num_hidden_layers", target.num_layers), ("hidden_size", target.hidden_size)) if value is None]
    if lost:
        text = f"the target's config.json names no {', '.join(lost)}: it is no model's, or a part of one"
        return confirmed(Fault("config-broken", "target", (Evidence(text),), "copy the target again, whole", 0.9))
    here = {"num_target_layers": target.num_layers, "target_hidden_size": target.hidden_size, "target_vocab_size": target.vocab_size}
    faults = []
    for name, said in (("draft", exam.draft.said if exam.draft else {}), ("dump", exam.dump.wiring if exam.dump else {})):
        wrong = {key: (whole(said.get(key)), value) for key, value in here.items() if whole(said.get(key)) not in (None, value)}
        if wrong and None not in here.values():
            words = ", ".join(f"{key} {left} (the target: {right})" for key, (left, right) in wrong.items())
            text = f"the {name} was made for another target: {words}"
            faults.append(Fault("other-target", name, (Evidence(text),), "use the target that it was made for", 0.95))
    faults += _draft_sizes(exam) if not faults else []
    return confirmed(*faults) if faults else ruled_out("sizes and layers are the target's", **here)


def _draft_sizes(exam: Examination) -> list[Fault]:
    """The same from the draft's own config, for a draft without a wiring."""
    draft, target = exam.draft, exam.target
    if draft is None or target is None:
        return []
    width = whole(draft.stated.get("target_hidden_size")) or whole(draft.stated.get("hidden_size"))
    vocab = whole(draft.stated.get("vocab_size"))
    wrong = []
    if width and target.hidden_size and width != target.hidden_size:
        wrong.append(f"it reads states of {width} numbers, the target's have {target.hidden_size}")
    if vocab and target.vocab_size and vocab != target.vocab_size:
        wrong.append(f"its vocabulary has {vocab} tokens, the target's {target.vocab_size}")
    if not wrong:
        return []
    remedy = "use the target that it was made for; if only config.json says so, mend target_hidden_size and vocab_size there"
    return [Fault("other-target", "draft", tuple(Evidence(text) for text in wrong), remedy, 0.9, covers=("shape-differs",))]


def compare_wirings(exam: Examination) -> Outcome:
    """The dump's wiring and the draft's, in every field that both state."""
    assert exam.draft is not None
    assert exam.dump is not None
    if not exam.draft.said or not exam.dump.wiring:
        return untestable("draft or dump bring no wiring")
    left, right = parsed(exam.draft.said, "the draft's wiring"), parsed(exam.dump.wiring, "the dump's wiring")
    if isinstance(left, str) or isinstance(right, str):
        return untestable(str(left if isinstance(left, str) else right))
    differences = [item for item in left.diff(right) if item.field_class == "must match" or item.field == "chat_template_hash"]
    if set(left.taps) < set(right.taps):  # more states than the draft reads take disk, and no more
        differences = [item for item in differences if item.field != "taps"]
    faults = [_difference(item) for item in differences]
    return confirmed(*faults) if faults else ruled_out("the dump's wiring is the draft's, in every field that both state")


def _difference(item: Difference) -> Fault:
    code = _FIELDS.get(item.field, "dump-wiring")
    text = f"{item.field}: the draft says {item.left}, the dump {item.right}; {item.cause}"
    shadow = _EDITS if code == "dump-wiring" else ("target-changed",)
    return Fault(code, "draft and dump", (Evidence(text),), item.remedy, 0.5, shadow=shadow)


def loads(exam: Examination) -> Outcome:
    """By the strict readers, which refuse whatever they cannot account for."""
    from eyas.doctor.opening.strict import refusal

    assert exam.draft is not None
    words = refusal(exam)
    if words is None:
        return ruled_out("the strict reader takes it")
    code = _kind_of_refusal(words)
    nearer = tuple(one for one in (*_EDITS, *_LOADING) if one != code)
    return confirmed(Fault(code, "draft", (Evidence(words),), "mend what the message names; eyas import says the same", 0.6, shadow=nearer))


def _kind_of_refusal(words: str) -> str:
    """By the file that the reader names first: what is wrong with a config's keys, or with a weight file, has a code of its own."""
    what = words.split(" got: ")[0]
    if re.search(r"\.(bin|pt|pth|safetensors)\b[^:]* (cannot be read|is damaged|is no )", what):
        return "weights-broken"
    return "config-broken" if re.search(r"config\.json: ", what) else "not-loadable"


_LOADING = tuple(code for code, row in CATALOG.items() if (row.kind == "H" and code != "not-loadable") or row.kind == "N")
