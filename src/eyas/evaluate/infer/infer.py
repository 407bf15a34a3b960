"""`eyas wiring infer`: search the taps, measure what is near the best, then the other switches; say when nothing is decided.

The draft's declared ids are not looked at. Everything is judged by first-token accuracy on the target's own text, norm_output
by the accuracy of step 1, for only that reads what is fed back. A constant RoPE offset changes no output and cannot be
inferred.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from eyas.capture.plan import Text
from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError
from eyas.evaluate.infer.evidence import MIN_ROWS, Evidence, gather_evidence
from eyas.evaluate.infer.hypotheses import Other, judge_others
from eyas.evaluate.infer.measure import Hits, Hypothesis, beats, measure, p_value, variant
from eyas.evaluate.infer.project import FastScore
from eyas.evaluate.infer.search import EMPTY, Point, neighbours, search
from eyas.progress import console
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target

_FINALISTS = 16
_OPEN_SWITCH = "norm_before_residual"  # the only one of step 0 that no weight shows
_EQUAL = 0.05  # of McNemar's test
_WEEDED_OUT = 1e-4  # so much worse on the first rows that the rest would not help
# The last layer's output and the state after the final norm differ by a gain a channel, so a draft reads either nearly alike, and may
# by luck read the one it was not trained on a little better. More rows only make that luck significant: it takes a visible difference.
_TWIN_MARGIN = 0.01


@dataclass(frozen=True)
class InferSettings:
    """`num_rows` are measured, `search_rows` searched on; `num_candidates` are listed."""

    num_rows: int = 6000
    search_rows: int = 128
    num_candidates: int = 10


@dataclass(frozen=True)
class Candidate:
    """A tap choice with its accuracy. beaten: is it significantly worse than the best one? p_value: of its accuracy being so.

    None for the best itself.
    """

    taps: tuple[Tap, ...]
    accuracy: float
    p_value: float | None
    beaten: bool | None

    def to_json(self) -> dict[str, Any]:
        return {"taps": [str(tap) for tap in self.taps], "accuracy": self.accuracy, "p_value": self.p_value, "beaten": self.beaten}


Ranking = tuple[tuple[Candidate, ...], bool, str]  # best first; is the best one decided, and why


@dataclass(frozen=True)
class InferReport:
    """`decided` is about the taps and their order; each of `others` says for itself whether it is decided."""

    candidates: tuple[Candidate, ...]
    decided: bool
    reason: str
    others: tuple[Other, ...]
    num_rows: int
    num_tried: int
    capture_seconds: float
    search_seconds: float
    settings: InferSettings = field(default_factory=InferSettings)

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def margin(self) -> float:
        """In accuracy, between the best and the runner-up."""
        return self.best.accuracy - max((other.accuracy for other in self.candidates[1:]), default=0.0)

    def to_json(self) -> dict[str, Any]:
        best = self.best.to_json() | {item.name: item.best for item in self.others}
        return {
            "best": best,
            "candidates": [candidate.to_json() for candidate in self.candidates[: self.settings.num_candidates]],
            "decided": self.decided,
            "reason": self.reason,
            "margin": self.margin,
            "others": [item.to_json() for item in self.others],
            "rows": self.num_rows,
            "wirings_tried": self.num_tried,
            "capture_seconds": self.capture_seconds,
            "search_seconds": self.search_seconds,
        }


@torch.no_grad()
def infer_wiring(target: Target, draft: Eagle3Draft, texts: Iterable[Text], settings: InferSettings | None = None) -> InferReport:
    """What `draft` was trained to read, judged on `texts` (the target's own answers).

    Raises UserError for a draft of more taps than the target has states, or texts without an answer.
    """
    settings = settings or InferSettings()
    if draft.config.num_taps > target.num_layers + 2:
        raise UserError("the draft reads more states than the target has", got=draft.config.num_taps, allowed=target.num_layers + 2)
    started = time.perf_counter()
    evidence = gather_evidence(target, texts, settings.num_rows, settings.search_rows)
    captured = time.perf_counter() - started
    return dataclasses.replace(infer_from(target, draft, evidence, settings), capture_seconds=captured)


@torch.no_grad()
def infer_from(target: Target, draft: Eagle3Draft, evidence: Evidence, settings: InferSettings) -> InferReport:
    """The same on states that were captured already, for one draft after the other."""
    started = time.perf_counter()
    console.print(f"{evidence.num_rows} rows, {len(evidence.taps)} states of the target, {draft.config.num_taps} slots")
    tried, ranking = _search(target, draft, evidence)
    others = judge_others(target, draft, evidence, ranking[0][0].taps)
    changes = {key: value for item in others for key, value in item.changes.items()}
    if changes:  # the taps were searched with a draft that ran otherwise than it was trained: once more, as it was
        console.print(f"once more with {', '.join(f'{key} = {value}' for key, value in changes.items())}", markup=False)
        draft = variant(draft, **changes)
        more, ranking = _search(target, draft, evidence)
        again = judge_others(target, draft, evidence, ranking[0][0].taps)
        others = tuple(dataclasses.replace(new, declared=old.declared) for old, new in zip(others, again, strict=True))
        tried += more
    if ranking[1] and any(item.name == _OPEN_SWITCH and not item.decided for item in others):
        more, ranking = _agreed(target, draft, evidence, ranking)
        tried += more
    candidates, decided, reason = ranking
    return InferReport(
        candidates=candidates,
        decided=decided,
        reason=reason,
        others=others,
        num_rows=evidence.num_rows,
        num_tried=tried,
        capture_seconds=0.0,
        search_seconds=time.perf_counter() - started,
        settings=settings,
    )


def _search(target: Target, draft: Eagle3Draft, evidence: Evidence) -> tuple[int, Ranking]:
    """How many choices were tried, and their ranking."""
    score = FastScore(target, draft, evidence.search)
    search(len(evidence.taps), draft.config.num_taps, score)
    return len(score.seen), _rank(evidence, _measure_finalists(draft, evidence, score))


def _agreed(target: Target, draft: Eagle3Draft, evidence: Evidence, ranking: Ranking) -> tuple[int, Ranking]:
    """A verdict on the taps must not hang on a switch that nothing decides: with its other value they must come out the same."""
    other = not getattr(draft.config, _OPEN_SWITCH)
    tried, found = _search(target, variant(draft, **{_OPEN_SWITCH: other}), evidence)
    candidates, best = ranking[0], ranking[0][0].taps
    if found[1] and found[0][0].taps == best:
        return tried, ranking
    named = format_taps(found[0][0].taps)
    return tried, (
        candidates,
        False,
        f"{_OPEN_SWITCH} is undecided, and with {other} it would be {named}" + ("" if found[1] else ", or others"),
    )


def _measure_finalists(draft: Eagle3Draft, evidence: Evidence, score: FastScore) -> dict[Point, Hits]:
    """The best of the search, and whatever is easily taken for the best, until the best has no better neighbour.

    All on the first rows; those that these do not rule out on the rest too.
    """
    seen = sorted((point for point in score.seen if EMPTY not in point), key=score.seen.__getitem__)
    hits: dict[Point, Hits] = {}

    def add(points: list[Point]) -> None:
        for point in points:
            if point not in hits:
                hits[point] = measure(draft, evidence, _hypothesis(evidence, point), evidence.first)

    add(seen[:_FINALISTS])
    while True:
        best = max(hits, key=lambda point: hits[point].accuracy)
        near = [point for point in neighbours(best, len(evidence.taps)) if point not in hits]
        if not near:
            break
        add(near)
    best_hits = hits[best].first
    for point in [point for point in hits if p_value(best_hits, hits[point].first) > _WEEDED_OUT]:
        hits[point] = hits[point].with_rest(measure(draft, evidence, _hypothesis(evidence, point), evidence.rest))
    return hits


def _hypothesis(evidence: Evidence, point: Point) -> Hypothesis:
    return Hypothesis(tuple(evidence.taps[state] for state in point))


def _are_twins(evidence: Evidence, point: Point, other: Point) -> bool:
    """Do they differ only by the last layer's output in place of the state after the final norm, or the other way round?"""
    last, final = len(evidence.taps) - 2, len(evidence.taps) - 1
    return all(mine == its or {mine, its} == {last, final} for mine, its in zip(point, other, strict=True))


def _rank(evidence: Evidence, hits: dict[Point, Hits]) -> Ranking:
    """Those measured on every row first, by accuracy; a weeded-out one is compared on the rows that it has.

    In front stands, of those that are not significantly worse than the most accurate one, the one that gives the target's tokens the
    highest probability: that decides nothing, but is the better guess.
    """
    order = sorted(hits, key=lambda point: (-len(hits[point].first), -hits[point].accuracy))
    top = hits[order[0]]
    equals = [point for point in order if len(hits[point].first) == len(top.first) and p_value(top.first, hits[point].first) > _EQUAL]
    front = max(equals, key=lambda point: float(hits[point].log_prob.mean()))
    order = [front, *(point for point in order if point != front)]
    best = hits[front]
    candidates = [Candidate(_hypothesis(evidence, order[0]).taps, best.accuracy, None, None)]
    for point in order[1:]:
        other = hits[point]
        mine = best.part(len(other.first))
        taps = _hypothesis(evidence, point).taps
        beaten = beats(mine, other) and (not _are_twins(evidence, front, point) or mine.accuracy - other.accuracy >= _TWIN_MARGIN)
        candidates.append(Candidate(taps, other.accuracy, p_value(mine.first, other.first), beaten))
    if evidence.num_rows < MIN_ROWS:
        return tuple(candidates), False, f"only {evidence.num_rows} rows; at least {MIN_ROWS} are needed for a verdict"
    open_ones = [candidate for candidate in candidates[1:] if not candidate.beaten]
    if open_ones:
        names = "; ".join(format_taps(candidate.taps) for candidate in open_ones[:3])
        return tuple(candidates), False, f"{len(open_ones)} other choices are not significantly worse: {names}"
    return tuple(candidates), True, "every other choice measured is significantly worse"
