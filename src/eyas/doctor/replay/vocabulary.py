"""Which tokens the rows of lm_head really mean, judged by when each row is preferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.trial import Option, bench_of, try_options
from eyas.doctor.vocab_map import repairs, token_of_rows

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_SUSPECTS = ("map-broken", "map-absolute", "map-other", "map-missing", "files-mixed")
_POOR = 0.7  # of the target's tokens, below which a vocabulary is called too small for these texts
_RIGHT = 0.4  # of the tokens that have an id: so often right, the ids that there are must be the right ones
_FEWEST = 5  # such tokens


def try_maps(exam: Examination) -> Outcome:
    """The usual mistakes undone, one by one; and the map that the texts themselves suggest."""
    bench = bench_of(exam)
    subject = bench.subject
    if subject.config.full_vocabulary and bool((subject.tensors["d2t"] == 0).all()):
        return ruled_out("the draft knows the whole vocabulary, and its ids are the target's")
    if exam.suspects("head-foreign", "head-missing", "weights-untrained") and not _other_head(exam):
        return untestable("lm_head comes first: rows of noise mean whatever they happen to be preferred for")
    if _stands_in(exam):
        return untestable("lm_head is replayed with the target's rows for these very ids, so they mean what they say")
    known, right = _covered(exam)
    if known < _POOR and right >= _RIGHT and not exam.suspects(*_SUSPECTS):
        return ruled_out(f"only {percent(known)} of the tokens have an id, but of these it gets {percent(right)} right: the map is its own")
    options = [
        Option(repair.what, subject.mapped(repair.ids), repair.remedy, repair.code)
        for repair in repairs(exam, subject.tensors["d2t"], subject.config)
        if not torch.equal(repair.ids, subject.ids)
    ]
    seen = token_of_rows(bench.results(subject)[0], subject)
    if seen is not None:
        words = "rows mean the tokens for which they are preferred in these texts"
        options.append(Option(words, subject.mapped(seen), "rebuild d2t from the checkpoint that lm_head was trained with", "map-other"))
    shadow = ("map-missing", "map-broken", "map-absolute")
    return try_options(exam, "map-other", options, suspected=exam.suspects(*_SUSPECTS), shadow=shadow)


def _other_head(exam: Examination) -> bool:
    """Whether the head was replaced since the draft was given."""
    bench = bench_of(exam)
    return bench.subject.tensors.get("lm_head.weight") is not bench.given.tensors.get("lm_head.weight")


def _stands_in(exam: Examination) -> bool:
    """Whether the head that was mended is the target's, row by row for the ids of the map."""
    bench = bench_of(exam)
    subject = bench.subject
    if not _other_head(exam) or subject.config.hidden_size != bench.target.hidden_size:
        return False
    rows = bench.target.head_rows(subject.ids.clamp(0, subject.config.vocab_size - 1)).float()
    own = subject.tensors.get("lm_head.weight")
    return own is not None and torch.equal(own, rows)


def _covered(exam: Examination) -> tuple[float, float]:
    """The share of the target's own tokens that have an id in the draft, and how often the draft is right on these.

    The mean over tokens, not over rows: a wrong map is right in its beginning, where end-of-turn tokens stand.
    """
    bench = bench_of(exam)
    result = bench.results(bench.subject)[0]
    known_N = torch.isin(result.label, bench.subject.ids)
    tokens, place_N = result.label[known_N].unique(return_inverse=True)
    if len(tokens) < _FEWEST:
        return float(known_N.float().mean()), 0.0
    hits = torch.zeros(len(tokens)).index_add_(0, place_N, result.hits[known_N].float())
    counts = torch.bincount(place_N, minlength=len(tokens))
    return float(known_N.float().mean()), float((hits / counts).mean())


def coverage(exam: Examination) -> Outcome:
    bench = bench_of(exam)
    config = bench.subject.config
    if config.full_vocabulary:
        return ruled_out("the draft knows the whole vocabulary")
    share, right = _covered(exam)
    exam.measured["coverage"] = share
    count = len(bench.results(bench.subject)[0].label)
    text = f"{percent(share)} of {count} tokens that the target says here are among the draft's {config.draft_vocab_size}"
    text += f"; of these it gets {percent(right)} right"
    if exam.suspects(*_SUSPECTS):
        return untestable("the map itself is wrong")
    if share < _POOR:
        remedy = "train with a vocabulary counted on texts like these, or the full one: acceptance cannot exceed this share"
        shadow = ("map-other", "map-absolute", "map-broken", "map-missing")
        return confirmed(Fault("map-coverage", "draft", (Evidence(text, {"share": share}),), remedy, 0.6, shadow=shadow))
    return ruled_out(text, share=share)
