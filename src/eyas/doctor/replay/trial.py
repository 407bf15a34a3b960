"""Fixes tried in memory: the best one that is decisively better than the draft as it is becomes the draft on the bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.doctor.catalog import CATALOG
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import Comparison, compare
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.texts import MADE_UP

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

LEARNT = 0.5  # of step 0's accuracy: a later step below it was never trained, whatever is tried
STANDS_IN = 1.1  # times as accurate: what a weight of 1 makes of states that it did not learn on may do a weak draft some good
_TRAINED = 0.05  # in accuracy
_PROMISING = 0.002  # nats on the search rows: no more rows are spent on what gains less there

_BREAKS = tuple(code for code, row in CATALOG.items() if row.kind in "CFG" or code in ("weights-untrained", "weights-not-finite"))
_LOST = ("head-foreign", "head-missing", "weights-untrained")


@dataclass(frozen=True)
class Option:
    """A fix: what it is in words, the draft with it, what the user is to do, and the code if it is not the hypothesis' own.

    factor: how many times as accurate as before it must be: more than 1 for fixes that also give the draft more to know.
    """

    what: str
    subject: Subject
    remedy: str
    code: str | None = None
    factor: float = 1.0


def bench_of(exam: Examination) -> Bench:
    bench = exam.bench
    assert bench is not None, "the hypothesis needs a replay"
    return bench


def try_options(
    exam: Examination,
    code: str,
    options: Sequence[Option],
    *,
    step: int = 0,
    suspected: bool = False,
    least: float = 0.0,
    shadow: tuple[str, ...] = (),
    small: bool = True,
) -> Outcome:
    """Args:
    step: by which the fix is judged; at step 1 the first step must not get worse.
    least: how accurate it must be.
    small: whether a small gain of a well trained draft may tell; not for fixes that a draft can gain by without having been trained so.
    """
    bench = bench_of(exam)
    if not options:
        return untestable("there is nothing else to try for this draft")
    before = bench.results(bench.subject, step + 1)
    hopeful = _screened(bench, options, step)
    tried = {option.what: compare(bench.results(option.subject, step + 1)[step], before[step]) for option in hopeful}
    trained = small and well_trained(exam, before[0].accuracy)
    proven = {what: is_proven(exam, item.after if step == 0 else before[0].accuracy) for what, item in tried.items()}
    good = [
        option
        for option in hopeful
        if tried[option.what].decisive(suspected, trained=trained and option.factor == 1.0, proven=proven[option.what])
        and tried[option.what].after >= max(least, option.factor * tried[option.what].before)
    ]
    if not suspected and _lost_parts(exam):  # with such a part missing, many a change that nobody made does the rest some good
        good = [option for option in good if _beats_pairs(exam, tried[option.what].after)]
    figures = {what: round(item.after, 4) for what, item in tried.items()}
    if not good:
        share = percent(before[step].accuracy)
        text = f"as it is, step {step} is right on {share} of {len(before[step].hits)} rows; nothing else tried is better"
        nearest = max(tried, key=lambda what: tried[what].nats, default=None)
        if nearest is not None:
            item = tried[nearest]
            text += f" beyond chance: {nearest} {percent(item.after)} (p {item.p:.2g}, z {item.z:.1f})"
        return ruled_out(text, as_given=before[step].accuracy, tried=figures)
    best = max(good, key=lambda option: (tried[option.what].after, tried[option.what].nats))
    won = tried[best.what]
    which = "" if step == 0 else f" at step {step}"
    text = f"{best.what}: with the fix, accuracy{which} {percent(won.before)} -> {percent(won.after)} on {len(before[step].hits)} rows"
    numbers = {"before": won.before, "after": won.after, "nats": won.nats, "p": won.p, "z": won.z, "tried": figures}
    evidence = (Evidence(text, numbers),)
    fault = Fault(best.code or code, "draft", evidence, best.remedy, weight_of(won), verified=True, shadow=shadow)
    bench.adopt(best.subject, fault)
    return confirmed(fault)


def unmended(exam: Examination) -> tuple[str, ...]:
    """What is wrong with the draft and could not be mended: what it says then may look like the tokens of another position or layer."""
    mended = {fault.code for fault in exam.faults if fault.verified}
    return tuple({fault.code for fault in exam.faults if fault.subject == "draft" and fault.code in _BREAKS} - mended)


def _lost_parts(exam: Examination) -> bool:
    """Is a part of the draft known to be none of its own, so that no test can run the draft as it was trained?"""
    return any(fault.subject == "draft" and fault.code in _LOST for fault in exam.faults)


def weight_of(won: Comparison) -> float:
    """A fix that explains more comes first; all that were measured come before what was only read."""
    return min(0.99, 0.9 + 0.09 * max(0.0, won.gain))


def _screened(bench: Bench, options: Sequence[Option], step: int) -> list[Option]:
    base = bench.screened(bench.subject, step + 1)
    found = []
    for option in options:
        nats = compare(bench.screened(option.subject, step + 1), base).nats
        if nats > _PROMISING:
            found.append((nats, option))
    found.sort(key=lambda item: -item[0])
    return [option for _, option in found[:3]]


def well_trained(exam: Examination, accuracy: float) -> bool:
    """Whether the draft beats a table of which token follows which by more than a little: a weak one may gain by any change."""
    return _beats_pairs(exam, accuracy - _TRAINED)


def is_proven(exam: Examination, accuracy: float) -> bool:
    """Whether such an accuracy shows what the draft was trained for: on texts that were made up for want of others, few show it."""
    return exam.measured.get("texts_from") != MADE_UP or _beats_pairs(exam, accuracy)


def _beats_pairs(exam: Examination, accuracy: float) -> bool:
    """Whether this is more than a table of which token follows which gives, for which no draft is needed."""
    return accuracy >= float(exam.measured.get("pair_table_accuracy", 1.0))
