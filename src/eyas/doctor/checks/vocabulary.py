"""F: which of the target's tokens the rows of lm_head mean."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out
from eyas.doctor.opening.expected import vocabulary

_REMEDY = "put d2t and t2d of the checkpoint that lm_head was trained with back into the weights"


def _there(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    own, whole_ones = vocabulary(draft)
    head, d2t, t2d = (draft.tensors.get(name) for name in ("lm_head.weight", "d2t", "t2d"))
    reduced = own is not None and whole_ones is not None and own < whole_ones
    faults = []
    if not draft.weights.tensors:
        return ruled_out("there are no headers to read")
    side = [name for name in draft.weights.pickled if "meta" in name]
    if reduced and d2t is None:
        text = f"lm_head knows {own} of {whole_ones} tokens, and no d2t says which" + (
            f"; {side[0]} lies beside the weights, where no engine looks" if side else ""
        )
        faults.append(Fault("map-missing", "draft", (Evidence(text),), _REMEDY, 0.85, covers=("keys-differ",)))
    turned = head is not None and own is not None and len(head.shape) == 2 and head.shape[0] != own == head.shape[1]
    if d2t is not None and head is not None and d2t.shape != head.shape[:1] and not turned:  # a head lying on its side is no map's fault
        text = f"d2t has {list(d2t.shape)} entries for {head.shape[0]} rows of lm_head"
        faults.append(Fault("map-broken", "draft", (Evidence(text),), _REMEDY, 0.85, covers=("shape-differs",)))
    if d2t is not None and d2t.dtype not in ("I64", "I32"):
        text = f"d2t is stored as {d2t.dtype}, not as whole numbers of 64 bits"
        faults.append(Fault("map-broken", "draft", (Evidence(text),), "store d2t as int64", 0.6))
    if t2d is not None and whole_ones and t2d.shape != (whole_ones,):
        text = f"t2d marks {list(t2d.shape)} tokens of a vocabulary of {whole_ones}"
        faults.append(Fault("map-broken", "draft", (Evidence(text),), _REMEDY, 0.7, covers=("shape-differs",)))
    return confirmed(*faults) if faults else ruled_out(f"{own} of {whole_ones} tokens, with a map of that size where one is needed")


def _invariants(exam: Examination) -> Outcome:
    from eyas.doctor.vocab_map import check_invariants

    return check_invariants(exam)


def _rows(exam: Examination) -> Outcome:
    from eyas.doctor.vocab_map import check_rows

    return check_rows(exam)


def _stray(exam: Examination) -> Outcome:
    from eyas.doctor.stray_maps import check_stray_maps

    return check_stray_maps(exam)


def _replayed(exam: Examination) -> Outcome:
    from eyas.doctor.replay.vocabulary import try_maps

    return try_maps(exam)


def _coverage(exam: Examination) -> Outcome:
    from eyas.doctor.replay.vocabulary import coverage

    return coverage(exam)


HYPOTHESES = (
    Hypothesis(
        "map-missing",
        "static",
        "the map of a reduced vocabulary is not in the weights",
        ("draft",),
        "read the headers of d2t, t2d and lm_head",
        "missing, or of another size",
        _there,
        prior=0.25,
    ),
    Hypothesis(
        "map-broken",
        "weights",
        "the map breaks its invariants",
        ("draft",),
        "check that i + d2t[i] is in range, rises, and is what t2d marks",
        "it does not",
        _invariants,
        prior=0.3,
        seconds=0.1,
    ),
    Hypothesis(
        "map-other",
        "weights",
        "rows of lm_head mean other tokens than the map says",
        ("draft", "target"),
        "compare each row of lm_head with the target's rows",
        "rows are most like those of other tokens",
        _rows,
        prior=0.2,
        seconds=1.0,
    ),
    Hypothesis(
        "map-other",
        "weights",
        "a map of another vocabulary lies beside the dump",
        ("dump",),
        "compare d2t.npy and t2d.npy with the draft's",
        "they differ",
        _stray,
        prior=0.1,
        seconds=0.1,
    ),
    Hypothesis(
        "map-other",
        "replay",
        "the map belongs to another head",
        ("draft", "replay"),
        "see which token each row is right for on real text, and measure the usual mistakes' repairs",
        "another map predicts better",
        _replayed,
        prior=0.5,
        seconds=1.0,
    ),
    Hypothesis(
        "map-coverage",
        "replay",
        "the draft does not know many of the tokens of these texts",
        ("draft", "replay"),
        "count the target's own tokens that have a draft id",
        "a large share has none",
        _coverage,
        prior=0.01,
        seconds=0.1,
    ),
)
