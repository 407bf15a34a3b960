"""A, B, D, I and M in captured states: every slot of the dump beside every state of the target."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Hypothesis, Outcome


def _slots(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_slots import check_slots

    return check_slots(exam)


def _embedding(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_slots import check_embedding_slot

    return check_embedding_slot(exam)


def _prefill(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_slots import check_prefill

    return check_prefill(exam)


HYPOTHESES = (
    Hypothesis(
        "states-partial",
        "replay",
        "the dump's slots hold something else than whole states of the layers that it names",
        ("samples", "layers"),
        "run the target over some of the texts and compare each slot with every state, normed, shifted, summed and scattered",
        "a slot is nearest to another state, or to a part of one",
        _slots,
        prior=0.5,
        seconds=3.0,
    ),
    Hypothesis(
        "states-scattered",
        "replay",
        "the embedding's slot is not the embedding of the dump's tokens",
        ("samples", "target"),
        "look each token up in the target's embedding and compare, also shifted",
        "rows differ, are zero, or belong to other tokens",
        _embedding,
        prior=0.3,
        seconds=0.5,
    ),
    Hypothesis(
        "context-lost",
        "replay",
        "context parallelism, as servers use it in prefill for a sparse attention, left rows scattered or without their context",
        ("samples", "layers"),
        "look for an indexer in the target's config; then for rows in the order of ranks, of one rank, or right for the prompt only",
        "rows stand in the order of ranks, or are right up to a position and wrong behind it",
        _prefill,
        prior=0.2,
        seconds=0.1,
    ),
)
