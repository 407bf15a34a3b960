"""The target's own rows in the place of the draft's embedding and lm_head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Outcome, ruled_out, untestable
from eyas.doctor.replay.trial import Option, bench_of, try_options

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination


# Causes that weights alone show: the replay only proves them.
_MAP = ("map-other", "map-absolute", "map-broken", "map-missing")
_HEAD = ("head-missing", "head-foreign", "weights-untrained")
_STATIC = ("head-missing", "weights-untrained", "weights-not-finite", "weights-broken", "tie-flag")


def try_head(exam: Examination) -> Outcome:
    """The target's rows for the draft's ids, and (full vocabulary) the target's head itself."""
    bench = bench_of(exam)
    subject = bench.subject
    if subject.config.lm_head_source == "target" or subject.config.hidden_size != bench.target.hidden_size:
        return ruled_out("the draft shares the target's head, or is of another width")
    if exam.suspects(*_MAP) and not exam.suspects(*_HEAD) and subject.tensors["d2t"] is bench.given.tensors["d2t"]:
        return untestable("the map comes first: under a wrong one any rows of the target are better than the head's own")
    ids = subject.ids.clamp(0, subject.config.vocab_size - 1)
    rows = bench.target.head_rows(ids).float()
    own = subject.tensors.get("lm_head.weight", subject.tensors.get("embed_tokens.weight"))
    remedy = "restore lm_head of the checkpoint that was trained; until then the target's rows for its ids can stand in"
    options = [Option("the target's rows as lm_head", subject.having({"lm_head.weight": rows}, lm_head_source="draft"), remedy)]
    if own is not None and own.shape == rows.shape:
        options += _halves(subject, own, rows, remedy)
    suspected = exam.suspects(*_HEAD, "tie-flag")
    return try_options(exam, "head-foreign", options, suspected=suspected, shadow=_STATIC)


def _halves(subject: object, own: torch.Tensor, rows: torch.Tensor, remedy: str) -> list[Option]:
    """A head of which one shard only was filled."""
    from eyas.doctor.replay.subject import Subject

    assert isinstance(subject, Subject)
    half = len(own) // 2
    mixed = {"the first half": torch.cat([rows[:half], own[half:]]), "the second half": torch.cat([own[:half], rows[half:]])}
    return [
        Option(f"the target's rows as {which} of lm_head", subject.having({"lm_head.weight": part}, lm_head_source="draft"), remedy)
        for which, part in mixed.items()
    ]


def try_embedding(exam: Examination) -> Outcome:
    bench = bench_of(exam)
    subject = bench.subject
    if not subject.config.own_embedding:
        return _try_scales(exam)
    if subject.config.hidden_size != bench.target.hidden_size or subject.config.lm_head_source == "embedding":
        return ruled_out("the draft's embedding is of another width, or its head too: the target's cannot stand in")
    remedy = "leave embed_tokens out of the export, so that every engine shares the target's; or restore the trained one"
    shared = subject.without("embed_tokens.weight", own_embedding=False)
    suspected = exam.suspects("embedding-foreign", "weights-untrained")
    options = [Option("the target's embedding in its place", shared, remedy)]
    return try_options(exam, "embedding-foreign", options, suspected=suspected, shadow=_STATIC)


def _try_scales(exam: Examination) -> Outcome:
    """A draft that was trained on the bare table where the target scales it, or the reverse: an engine shares the bare one."""
    bench = bench_of(exam)
    subject = bench.subject
    table = getattr(bench.target.embed, "weight", None)
    if not isinstance(table, torch.Tensor) or table.shape[1] != subject.config.hidden_size:
        return ruled_out("the draft shares the target's embedding")
    some = torch.arange(min(8, len(table)))
    with torch.no_grad():
        if torch.allclose(bench.target.embed(some), table[some], rtol=1e-3):
            return ruled_out("the draft shares the target's embedding, which no family scales here")
    bare = subject.having({"embed_tokens.weight": table.detach().float()}, own_embedding=True)
    remedy = "the draft was trained on the unscaled table: write it into the checkpoint as an embedding of its own"
    return try_options(exam, "embedding-foreign", [Option("the target's table without its scale", bare, remedy)])
