"""What an engine's feed is worth: the draft, as the replay mended it, on the states that this version would give it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from eyas.doctor.engine_view import export_for, fed_taps
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.trial import bench_of, weight_of
from eyas.taps import format_taps

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination


def measure_feed(exam: Examination) -> Outcome:
    """The tables say what is fed; whether that is wrong for this draft, whatever its config declares, is measured here."""
    bench, found = bench_of(exam), fed_taps(exam)
    if found is None:
        return untestable("no table says what this engine would feed this checkpoint")
    judged, fed = found
    engine = judged.name
    wanted = bench.subject.taps
    if fed == wanted:
        text = f"{engine} feeds {format_taps(fed)}, which this draft predicts best from"
        if bench.given.taps != wanted:
            exam.notes.append(f"{text}: served there it gets what it was trained on, though its config names other states")
        return dataclasses.replace(ruled_out(text), overrules=(("engine", "taps-engine"), ("engine", "slot-order")))
    if fed == bench.given.taps:  # whether these are the right ones is asked of the draft
        return ruled_out(f"{engine} feeds {format_taps(fed)}, as the draft's config says")
    if any(tap not in bench.evidence.taps for tap in fed) or len(fed) != len(wanted):
        return untestable(f"{engine} feeds {format_taps(fed)}, which are not among the states at hand")
    own = bench.results(bench.subject)[0]
    won = compare(own, bench.results(dataclasses.replace(bench.subject, taps=fed))[0])
    words = f"fed {format_taps(fed)}, as {engine} would, it is right on {percent(won.before)} of {len(own.hits)} rows"
    words += f", fed {format_taps(wanted)} on {percent(won.after)}"
    numbers = {"fed": won.before, "own": won.after, "p": won.p, "z": won.z}
    if not won.decisive(suspected=True):
        return ruled_out(f"{words}: no more than chance", **numbers)
    code = "slot-order" if sorted(map(str, fed)) == sorted(map(str, wanted)) else "taps-engine"
    return confirmed(Fault(code, "engine", (Evidence(words, numbers),), export_for(judged), weight_of(won), verified=True))
