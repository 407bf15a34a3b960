"""Which states the draft wants in its slots: first those near the declared ones, then, if it predicts little, all that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of, weight_of
from eyas.errors import UserError
from eyas.evaluate.infer.project import FastScore
from eyas.evaluate.infer.search import Point, neighbours, search
from eyas.taps import Tap, format_taps

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_LOW = 0.3  # accuracy below which every choice is searched, however far from the declared one
_BETTER = 0.03  # nats on the search rows that make a neighbour worth the whole search


def search_taps(exam: Examination) -> Outcome:
    """The exact measurement decides; the search only proposes."""
    bench = bench_of(exam)
    subject, evidence = bench.subject, bench.evidence
    states, slots = len(evidence.taps), len(subject.taps)
    if states < slots or (not bench.whole and states == slots == 1):
        return untestable("there are no other states to feed")
    if subject.shift or subject.normed:
        return untestable("the states are shifted or normed already; they were searched before that")
    try:
        score = FastScore(bench.target, subject.build(bench.target), evidence.search)
        here = tuple(evidence.taps.index(tap) for tap in subject.taps)
        best = _search(bench, here, score)
    except UserError as error:
        return untestable(" ".join(str(error).split()))
    figures = _matrix(bench, here, score)
    exam.measured["slot_scores"] = figures
    if best == here:
        what = "" if bench.whole else " (among the states that the dump holds)"
        return ruled_out(f"no other choice of states near {format_taps(subject.taps)} predicts better{what}", tried=len(score.seen))
    return _measured(exam, bench, tuple(evidence.taps[place] for place in best))


def _search(bench: Bench, here: Point, score: FastScore) -> Point:
    accuracy = bench.results(bench.subject)[0].accuracy
    states = len(bench.evidence.taps)
    near = [point for point in neighbours(here, states) if -1 not in point]
    near += [(*here[:slot], state, *here[slot + 1 :]) for slot in range(len(here)) for state in range(states) if state not in here]
    best = min([here, *near], key=score)
    if accuracy < _LOW or score(best) < score(here) - _BETTER:
        best = min([best, search(states, len(here), score)], key=score)
    return best if score(best) < score(here) else here


def _matrix(bench: Bench, here: Point, score: FastScore) -> dict[str, list[float | None]]:
    """For the heat map: per slot, the cross-entropy with each state there and the others as they are."""
    names = [str(tap) for tap in bench.evidence.taps]
    rows = {
        str(slot): [score.seen.get((*here[:slot], state, *here[slot + 1 :])) for state in range(len(names))] for slot in range(len(here))
    }
    return {"states": names, **rows}  # type: ignore[dict-item]


def _measured(exam: Examination, bench: Bench, taps: tuple[Tap, ...]) -> Outcome:
    subject = bench.subject
    other = Subject(**{**vars(subject), "taps": taps})
    before = bench.results(subject)[0]
    won = compare(bench.results(other)[0], before)
    declared = format_taps(subject.taps)
    if not won.decisive(exam.suspects("taps-other", "taps-shifted", "slot-order", "taps-impossible", "taps-undeclared", "files-mixed")):
        text = f"{format_taps(taps)}: right on {percent(won.after)} of the rows, {declared}: {percent(won.before)}; not decisively more"
        return ruled_out(text, after=won.after, before=won.before, p=won.p)
    code = code_of(subject.taps, taps)
    text = (
        f"fed {declared} it is right on {percent(won.before)} of {len(before.hits)} rows, fed {format_taps(taps)} on {percent(won.after)}"
    )
    evidence = Evidence(
        f"{text}: with the fix, accuracy {percent(won.before)} -> {percent(won.after)}",
        {"before": won.before, "after": won.after, "p": won.p},
    )
    remedy = f"feed it {format_taps(taps)}, in this order: eyas wiring translate gives an engine's keys; or permute fc: eyas export"
    shadow = ("taps-undeclared", "taps-impossible")
    fault = Fault(code, "draft", (evidence,), remedy, weight_of(won), verified=True, shadow=shadow)
    bench.adopt(other, fault)
    return confirmed(fault)


def code_of(declared: tuple[Tap, ...], found: tuple[Tap, ...]) -> str:
    if sorted(map(str, declared)) == sorted(map(str, found)):
        return "slot-order"
    steps = {a.boundary - b.boundary for a, b in zip(declared, found, strict=True) if a.boundary is not None and b.boundary is not None}
    return "taps-shifted" if steps in ({1}, {-1}) else "taps-other"
