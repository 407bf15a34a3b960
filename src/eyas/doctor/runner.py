"""The examination itself: hypotheses by depth, within a depth the likeliest for their cost first, and what follows from them.

Replay tests change the draft in memory as they confirm causes (`replay.bench`): what was ruled out before is then tested
once more, for the second fault behind the first.
"""

from __future__ import annotations

import dataclasses
import time

from eyas.doctor.catalog import entry
from eyas.doctor.checks import all_hypotheses
from eyas.doctor.examination import Examination
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import DEPTHS, Diagnosis, Evidence, Fault, Finding, Hypothesis, Outcome, Tested, untestable
from eyas.doctor.joint import joined
from eyas.doctor.next_steps import next_steps
from eyas.doctor.opening.draft import refuse_target
from eyas.doctor.reported import require_figures
from eyas.doctor.signatures import boosts, suspicions
from eyas.doctor.verdict import summary_of, verdict_of
from eyas.errors import UserError
from eyas.progress import Progress, console

_MAX_PASSES = 3
_BOTH, _SUREST = 0.05, 0.99


def run(exhibits: Exhibits, options: Options) -> Diagnosis:
    """See `eyas.doctor.diagnose`."""
    return examine(exhibits, options)[0]


def examine(exhibits: Exhibits, options: Options) -> tuple[Diagnosis, Examination]:
    """The diagnosis, and the examination behind it, with the draft as it was mended in memory."""
    exhibits.check()
    options.check()
    started = time.perf_counter()
    exam = Examination(exhibits, options)
    if exam.draft is not None:
        refuse_target(exam.draft)
    exam.open_remote()
    require_figures(exam)
    boost = boosts(exam)
    tested: dict[int, Tested] = {}
    wanted = [item for item in all_hypotheses() if item.depth in options.depths and options.wants(item.code, item.kind)]
    with Progress("examining", len(wanted), "hypotheses") as progress:
        for depth in DEPTHS:
            here = [item for item in wanted if item.depth == depth]
            spoken_for = {fault.code for fault in exam.faults}  # at an earlier depth
            here.sort(key=lambda item: (item.code not in spoken_for, -item.prior * boost.get(item.kind, 1.0) / (0.2 + item.seconds)))
            _passes(exam, [item for item in here if not item.last], tested, started, progress)
            if depth == "replay":
                _reorder(exam, tested, started)
                _prune(exam, tested)
            count = len(exam.faults)
            last = [item for item in here if item.last]
            _passes(exam, last, tested, started, progress)
            if depth == "replay" and _withdraw(exam, tested, exam.faults[count:]):
                _passes(exam, last, tested, started, progress)  # once more, on the draft as it came
    findings = merge(joined(exam.faults))
    results = tuple(tested[id(item)] for item in wanted if id(item) in tested)
    verdict = verdict_of(exam, findings, results)
    diagnosis = Diagnosis(
        verdict=verdict,
        summary=summary_of(exam, verdict, findings, results),
        findings=findings,
        tested=results,
        slots=exam.slots,
        measured=exam.measured,
        signature=suspicions(exam),
        next_steps=next_steps(exam.exhibits, verdict, findings),
        notes=tuple(exam.notes),
        exhibits=exam.exhibits.to_json(),
        seconds=time.perf_counter() - started,
    )
    return diagnosis, exam


def _passes(exam: Examination, hypotheses: list[Hypothesis], tested: dict[int, Tested], started: float, progress: Progress) -> None:
    """Test all; then again those ruled out, as long as a replay mended something that may have hidden them."""
    for _ in range(_MAX_PASSES):
        mended = exam.measured.get("mended", 0)
        for item in hypotheses:
            before = tested.get(id(item))
            if before is None or ("replay" in item.needs and before.outcome.judgement != "confirmed"):
                progress.advance(0, item.code)
                found = _test(exam, item, started)
                progress.advance(0 if before is not None else 1)
                if before is None or found.outcome.judgement == "confirmed":
                    tested[id(item)] = found
                exam.faults += found.outcome.faults
                _overrule(exam, found, tested)
        if exam.measured.get("mended", 0) == mended:
            return


def _reorder(exam: Examination, tested: dict[int, Tested], started: float) -> None:
    """What was tested early may have been mended in the place of a cause that was tested later."""
    bench = vars(exam).get("bench")
    if bench is None or len(bench.steps) < 2:
        return
    from eyas.doctor.replay.reorder import try_orders  # the replay has loaded torch by now

    of_fault = {id(fault): item.hypothesis for item in tested.values() for fault in item.outcome.faults}
    mending = [of_fault[id(fault)] for fault, _, _ in bench.steps if id(fault) in of_fault]
    if len(mending) < len(bench.steps):
        return  # one of them was taken back
    for found in try_orders(exam, bench, mending, lambda item: _run(exam, item, started)):
        before = tested[id(found.hypothesis)]
        for fault in before.outcome.faults:
            _acquit(exam, fault, tested, "once another cause is mended first, it changes nothing: no cause of its own")
        if found.outcome.judgement == "confirmed":
            tested[id(found.hypothesis)] = found
            exam.faults += found.outcome.faults
            _overrule(exam, found, tested)


def _prune(exam: Examination, tested: dict[int, Tested]) -> None:
    """A fix that looked good on a draft that was still broken otherwise, and does nothing for the mended one, was none."""
    bench = vars(exam).get("bench")
    if bench is None:
        return
    for fault in bench.prune():
        _acquit(exam, fault, tested, "with all other fixes it changes nothing: no cause of its own")


def _withdraw(exam: Examination, tested: dict[int, Tested], late: list[Fault]) -> bool:
    """Whether what was mended is taken back."""
    bench = vars(exam).get("bench")
    if bench is None:
        return False
    from eyas.doctor.replay.proof import withdraw_unproven  # the replay has loaded torch by now

    withdrawn, why = withdraw_unproven(exam, bench, late)
    for fault in withdrawn:
        _acquit(exam, fault, tested, why)
    return bool(withdrawn)


def _overrule(exam: Examination, found: Tested, tested: dict[int, Tested]) -> None:
    for fault in [fault for fault in exam.faults if (fault.subject, fault.code) in found.outcome.overrules]:
        _acquit(exam, fault, tested, f"measured: {found.outcome.evidence[0].text}")


def _acquit(exam: Examination, fault: Fault, tested: dict[int, Tested], why: str) -> None:
    """Take back what was confirmed; it stays suspected, with the reason."""
    exam.faults = [held for held in exam.faults if held is not fault]
    for key, item in tested.items():
        if fault in item.outcome.faults:
            tested[key] = Tested(item.hypothesis, Outcome("suspected", (*item.outcome.evidence, Evidence(why))), item.seconds)


def _test(exam: Examination, item: Hypothesis, started: float) -> Tested:
    found = _run(exam, item, started)
    if found.outcome.judgement == "confirmed":
        console.print(f"{found.outcome.faults[0].code}: {found.outcome.evidence[0].text}", markup=False, highlight=False)
    return found


def _run(exam: Examination, item: Hypothesis, started: float) -> Tested:
    begun = time.perf_counter()
    minutes = exam.options.minutes
    if minutes is not None and begun - started > 60 * minutes:
        return Tested(item, untestable(f"the budget of {minutes:g} minutes was used up"), 0.0)
    reason = exam.missing(item.needs)
    if reason is not None:
        return Tested(item, untestable(reason), time.perf_counter() - begun)
    try:
        outcome = item.run(exam)
    except UserError as error:
        outcome = untestable(" ".join(str(error).split()))
    except Exception as error:  # exhibits may be broken in any way; one test that trips over them must not end the others
        outcome = untestable(f"the test itself broke, which is a bug in Eyas: {type(error).__name__}: {str(error)[:200]}")
        exam.broken.append(item.code)
        exam.notes.append(f"{item.code}: {outcome.reason}")
    return Tested(item, outcome, time.perf_counter() - begun)


def merge(faults: list[Fault]) -> tuple[Finding, ...]:
    """One finding a code and subject; what only shadows another fault of its subject becomes a part of that one's evidence."""
    by_place: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        held = by_place.get((fault.code, fault.subject))
        by_place[fault.code, fault.subject] = fault if held is None else _joined(held, fault)
    shadows = [fault for fault in by_place.values() if _cause_of(fault, by_place)]
    causes = {key: fault for key, fault in by_place.items() if fault not in shadows}
    for shadow in shadows:
        key = _cause_of(shadow, by_place)
        while key is not None and key not in causes:  # a shadow of a shadow
            key = _cause_of(by_place[key], by_place)
        if key is not None:
            joins = _with_evidence if causes[key].code in shadow.shadow else _noting
            causes[key] = joins(causes[key], shadow)
    order = sorted(causes.values(), key=lambda fault: (-fault.weight, fault.code))
    return tuple(_finding(fault) for fault in order)


def _cause_of(fault: Fault, others: dict[tuple[str, str], Fault]) -> tuple[str, str] | None:
    """The heaviest fault that this one only shadows."""
    found = [key for key, other in others.items() if other is not fault and _follows(fault, other) and not _follows(other, fault)]
    return max(found, key=lambda key: others[key].weight, default=None)


def _follows(fault: Fault, other: Fault) -> bool:
    related = other.subject in fault.subject or fault.subject in other.subject or fault.subject == "server"
    return (other.code in fault.shadow and related) or fault.code in other.covers


def _joined(first: Fault, second: Fault) -> Fault:
    better = second if (second.verified, second.weight) > (first.verified, first.weight) else first
    other = first if better is second else second
    return _with_evidence(better, other)


def _with_evidence(fault: Fault, other: Fault) -> Fault:
    """What was measured about the one is told first, and holds for both."""
    parts = (other, fault) if other.verified and not fault.verified else (fault, other)
    evidence = tuple(dict.fromkeys(item.text for part in parts for item in part.evidence))
    known = {item.text: item for part in parts for item in part.evidence}
    weight, verified = max(fault.weight, other.weight), fault.verified or other.verified
    # Seen in the files, and then measured: surer than either. A dump's fault hurts the next training; what costs more today comes first.
    if fault.verified != other.verified and fault.subject != "dump":
        weight = min(_SUREST, weight + _BOTH)
    texts = tuple(known[text] for text in evidence)
    covers = tuple(dict.fromkeys((*fault.covers, *other.covers)))
    return dataclasses.replace(fault, evidence=texts, weight=weight, verified=verified, covers=covers)


def _noting(fault: Fault, other: Fault) -> Fault:
    """What only follows from it is told last; that it went away by some change or other proves nothing of the cause."""
    known = {item.text for item in fault.evidence}
    evidence = (*fault.evidence, *(item for item in other.evidence if item.text not in known))
    return dataclasses.replace(fault, evidence=evidence, weight=max(fault.weight, other.weight))


def _finding(fault: Fault) -> Finding:
    row = entry(fault.code)
    return Finding(row.code, row.kind, row.title, fault.subject, fault.evidence, fault.remedy, fault.verified, fault.weight)
