"""Which states the draft wants in its slots: first those near the declared ones, then, if it predicts little, all that there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import Comparison, compare
from eyas.doctor.replay.norms import placements
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of, is_proven, weight_of, well_trained
from eyas.errors import UserError
from eyas.evaluate.infer.project import FastScore
from eyas.evaluate.infer.search import EMPTY, Point, neighbours, search
from eyas.taps import Tap, format_taps, parse_taps

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_LOW = 0.3  # accuracy below which every choice is searched, however far from the declared one
_MEASURED = 6  # of the search's points, on all rows
_BETTER = 0.03  # nats on the search rows that make a neighbour worth the whole search


@dataclass(frozen=True)
class Searched:
    """What the search made of one subject: `here` is what it is fed, `best` what predicts best, as places in the evidence's states."""

    subject: Subject
    score: FastScore
    here: Point
    best: Point


def search_taps(exam: Examination) -> Outcome:
    """The exact measurement decides; the search only proposes."""
    bench = bench_of(exam)
    found = _searched(bench)
    if isinstance(found, str):
        return untestable(found)
    exam.measured["slot_scores"] = _matrix(bench, found)
    chosen = found.subject if found.best == found.here else _chosen(exam, bench, found)
    if chosen.taps == found.subject.taps:
        what = "" if bench.whole else " (among the states that the dump holds)"
        tried = len(found.score.seen)
        return ruled_out(f"no other choice of states near {format_taps(bench.subject.taps)} predicts better{what}", tried=tried)
    return _measured(exam, bench, chosen)


def _chosen(exam: Examination, bench: Bench, found: Searched) -> Subject:
    """Of what the search likes best, what predicts best on all rows; the dump's own states if nothing is decisively better.

    The search goes by few rows. Neighbouring layers say nearly the same, and what a dump was made with is what its draft read.
    """
    points = sorted((point for point in found.score.seen if _whole(point)), key=found.score)[:_MEASURED]
    options = [replace(found.subject, taps=_taps_of(bench, point)) for point in points]
    best = max(options, key=lambda option: bench.results(option)[0].mean_log_prob)
    recorded = _recorded(exam, bench)
    if recorded is None or recorded in (found.subject.taps, best.taps):
        return best
    own = replace(found.subject, taps=recorded)
    won = compare(bench.results(best)[0], bench.results(own)[0])
    return best if won.decisive(False, proven=is_proven(exam, won.after)) else own


def _whole(point: Point) -> bool:
    return EMPTY not in point and len(set(point)) == len(point)


def _recorded(exam: Examination, bench: Bench) -> tuple[Tap, ...] | None:
    """The states that the dump says it holds, if they can be fed."""
    names = exam.dump.wiring.get("taps") if exam.dump is not None else None
    try:
        taps = parse_taps(",".join(map(str, names))) if isinstance(names, list) else ()
    except UserError:  # a broken record is another test's finding
        return None
    fits = len(taps) == len(bench.subject.taps) and all(tap in bench.evidence.taps for tap in taps)
    return taps if fits else None


def states_beyond_order(bench: Bench) -> tuple[Tap, ...] | None:
    """Other states that predict better than the given ones do in any order; None if there are none, or none can be fed.

    A draft that is fed a shifted selection ([layer:2, layer:30, layer:58] for [embed, layer:2, layer:30]) gains from another
    order as well, since that brings some state into its own slot; the cause is still the selection.
    """
    found = _searched(bench)
    if isinstance(found, str) or sorted(found.best) == sorted(found.here):
        return None
    ordered = min(found.score(order) for order in permutations(found.here))
    return _taps_of(bench, found.best) if found.score(found.best) < ordered - _BETTER else None


def _searched(bench: Bench) -> Searched | str:
    """Why there is nothing to search, in words, or the search of the subject on the bench, made once."""
    subject, evidence = bench.subject, bench.evidence
    if isinstance(bench.searched, Searched) and bench.searched.subject is subject:
        return bench.searched
    states, slots = len(evidence.taps), len(subject.taps)
    if states < slots or (not bench.whole and states == slots == 1):
        return "there are no other states to feed"
    if subject.shift or subject.normed:
        return "the states are shifted or normed already; they were searched before that"
    try:
        score = FastScore(bench.target, subject.rising().build(bench.target), evidence.search)
        here = tuple(evidence.taps.index(tap) for tap in subject.taps)
        bench.searched = Searched(subject, score, here, _search(bench, here, score))
    except UserError as error:
        return " ".join(str(error).split())
    return bench.searched


def _taps_of(bench: Bench, point: Point) -> tuple[Tap, ...]:
    return tuple(bench.evidence.taps[place] for place in point)


def _search(bench: Bench, here: Point, score: FastScore) -> Point:
    accuracy = bench.results(bench.subject)[0].accuracy
    states = len(bench.evidence.taps)
    near = [point for point in neighbours(here, states) if -1 not in point]
    near += [(*here[:slot], state, *here[slot + 1 :]) for slot in range(len(here)) for state in range(states) if state not in here]
    best = min([here, *near], key=score)
    if accuracy < _LOW or score(best) < score(here) - _BETTER:
        best = min([best, search(states, len(here), score)], key=score)
    return best if score(best) < score(here) else here


def _matrix(bench: Bench, found: Searched) -> dict[str, list[float | None]]:
    """For the heat map: per slot, the cross-entropy with each state there and the others as they are."""
    names, here = [str(tap) for tap in bench.evidence.taps], found.here
    rows = {
        str(slot): [found.score.seen.get((*here[:slot], state, *here[slot + 1 :])) for state in range(len(names))]
        for slot in range(len(here))
    }
    return {"states": names, **rows}  # type: ignore[dict-item]


def _measured(exam: Examination, bench: Bench, other: Subject) -> Outcome:
    subject, taps = bench.subject, other.taps
    before = bench.results(subject)[0]
    won = compare(bench.results(other)[0], before)
    declared = format_taps(subject.taps)
    code = code_of(subject.taps, taps)
    spoken_for = exam.suspects("taps-other", "taps-shifted", "slot-order", "taps-impossible", "taps-undeclared", "files-mixed")
    decisive = won.decisive(spoken_for, trained=well_trained(exam, won.before), proven=is_proven(exam, won.after))
    if not decisive and not (_usual(subject.taps, taps) and _surely(exam, won)):
        text = f"{format_taps(taps)}: right on {percent(won.after)} of the rows, {declared}: {percent(won.before)}; not decisively more"
        return ruled_out(text, after=won.after, before=won.before, p=won.p, nats=won.nats, z=won.z)
    norm = None if _usual(subject.taps, taps) else _norm_instead(exam, bench, other)
    if norm is not None:
        return ruled_out(f"{format_taps(taps)}: right on {percent(won.after)} of the rows; {norm}, with the states as they are, on more")
    text = (
        f"fed {declared} it is right on {percent(won.before)} of {len(before.hits)} rows, fed {format_taps(taps)} on {percent(won.after)}"
    )
    evidence = Evidence(
        f"{text}: with the fix, accuracy {percent(won.before)} -> {percent(won.after)}",
        {"before": won.before, "after": won.after, "p": won.p},
    )
    remedy = f"feed it {format_taps(taps)}, in this order: eyas wiring translate gives an engine's keys; or permute fc: eyas export"
    fault = Fault(_cause(exam) or code, "draft", (evidence,), remedy, weight_of(won), verified=True)
    bench.adopt(other, fault)
    return confirmed(fault)


def _norm_instead(exam: Examination, bench: Bench, other: Subject) -> str | None:
    """A norm in another place that makes more of the states as they are. Without it, those of the usual size may seem the right ones."""
    chosen = bench.results(other)[0]
    found = {option.what: bench.results(option.subject)[0] for option in placements(exam)}
    best = max(found, key=lambda what: found[what].accuracy, default=None)
    return best if best is not None and compare(found[best], chosen).decisive(False) else None


def _cause(exam: Examination) -> str | None:
    """Why it was fed what engines take by default, if that is so: what is declared cannot be fed, or nothing is declared."""
    if any(fault.code == "taps-impossible" and fault.subject == "draft" for fault in exam.faults):
        return "taps-impossible"
    return "taps-undeclared" if exam.draft is not None and exam.draft.boundaries is None else None


def _usual(declared: tuple[Tap, ...], found: tuple[Tap, ...]) -> bool:
    """What is easily mistaken: the same states in another order, or some that are counted one off."""
    pairs = [(a.boundary, b.boundary) for a, b in zip(declared, found, strict=True)]
    one_off = all(a == b or (a is not None and b is not None and abs(a - b) == 1) for a, b in pairs)
    return one_off or code_of(declared, found) == "slot-order"


def _surely(exam: Examination, won: Comparison) -> bool:
    """The usual mistakes cost little where neighbouring layers are alike. A draft that was trained well is at its best on its own states,
    so there a small gain counts, if it is beyond chance; a weak one may do better on later states by itself.
    """
    return well_trained(exam, won.before) and won.z >= 5 and won.nats >= 0.02 and won.gain >= 0


def code_of(declared: tuple[Tap, ...], found: tuple[Tap, ...]) -> str:
    if sorted(map(str, declared)) == sorted(map(str, found)):
        return "slot-order"
    steps = {a.boundary - b.boundary for a, b in zip(declared, found, strict=True) if a.boundary is not None and b.boundary is not None}
    return "taps-shifted" if steps in ({1}, {-1}) else "taps-other"
