"""What servers reported, as outcomes: figures that cannot be, figures of another definition, and a fall over time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.reading_files import Told, read_log, read_metrics, readings_of
from eyas.doctor.readings import Reading
from eyas.errors import UserError

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_DRIFT = 0.08  # of the drafts a round that must be lost between the first and the last third


def told(exam: Examination) -> Told:
    match = re.fullmatch(r"\s*([a-z-]+)\s*==\s*(\S+)\s*", exam.exhibits.engine or "")
    engine, version = (match[1], match[2]) if match else (None, None)
    return Told(engine, version, exam.options.num_draft_tokens)


def readings(exam: Examination) -> tuple[Reading, ...]:
    """What a server that was asked counted, then what --metrics and --log say. Raises UserError if these hold no figures."""
    asked = [] if exam.asking is None else exam.asking.readings(told(exam))
    found = (*asked, *given_readings(exam))
    exam.measured["reported"] = [reading.to_json() for reading in found]
    return found


def given_readings(exam: Examination) -> tuple[Reading, ...]:
    """Raises UserError if --metrics or --log holds no figures."""
    found: list[Reading] = []
    if isinstance(exam.exhibits.metrics, str):
        found += readings_of(exam.metrics_text, exam.exhibits.metrics, told(exam))
    elif exam.exhibits.metrics is not None:
        found += read_metrics(exam.exhibits.metrics, told(exam))
    if exam.exhibits.log is not None:
        found.append(read_log(exam.exhibits.log, told(exam)).reading)
    return tuple(found)


def require_figures(exam: Examination) -> None:
    """Raises UserError if --metrics or --log is a file without figures: whoever gives one wants them read."""
    if isinstance(exam.exhibits.metrics, Path):
        read_metrics(exam.exhibits.metrics, told(exam))
    if exam.exhibits.log is not None:
        runs = read_log(exam.exhibits.log, told(exam)).runs
        if runs > 1:
            exam.notes.append(f"--log holds {runs} runs of the server: the last one is read")


def rates_of(exam: Examination) -> list[tuple[str, list[float], float | None]]:
    """For the signatures: a name, conditional rates by position as far as they are values, and the length."""
    try:
        found = readings(exam)
    except UserError:
        return []
    out = []
    for reading in found:
        rates = [item.value for item in reading.conditional if item is not None and item.value is not None]
        length = reading.acceptance_length.value if reading.acceptance_length is not None else None
        out.append((reading.engine if len(found) == 1 else f"{reading.engine}, {reading.where}", rates, length))
    return out


def draft_tokens(exam: Examination) -> int | None:
    """K of the server, as far as anything tells it."""
    try:
        found = [reading.num_draft_tokens or 0 for reading in readings(exam)]
    except UserError:
        found = []
    asked = None if exam.asking is None else exam.asking.num_draft_tokens
    return max([*found, asked or 0]) or None


def impossible(exam: Examination) -> Outcome:
    return _oddities(
        exam, "impossible", "metric-impossible", "read the server's own counters again: emitted, accepted and rounds, each by itself"
    )


def definitions(exam: Examination) -> Outcome:
    return _oddities(exam, "other definition", "metric-definition", "compare in per-position terms only, as this report does")


def _oddities(exam: Examination, kind: str, code: str, remedy: str) -> Outcome:
    found = readings(exam)
    if not found:
        return untestable("the server shows no figures of speculative decoding")
    odd = [(reading, item) for reading in found for item in reading.oddities if item.kind == kind]
    if odd:
        evidence = tuple(
            Evidence(f"{reading.engine}: {item.what}: {item.got}; {item.allowed}", {"got": item.got}) for reading, item in odd[:4]
        )
        return confirmed(Fault(code, "metrics", evidence, remedy, 0.6))
    names = ", ".join(
        f"{reading.engine} {reading.acceptance_length.value:.2f}"
        for reading in found
        if reading.acceptance_length and reading.acceptance_length.value
    )
    return ruled_out(f"the figures agree with each other: acceptance length {names or 'not stated'}")


_MANY = 50  # rounds of which no draft gets all or none right


def extremes(exam: Examination, code: str) -> Outcome:
    """Every proposal accepted, or none, round after round: no draft is so good or so bad."""
    told = []
    for reading in readings(exam):
        length, count = reading.acceptance_length, reading.num_draft_tokens
        if length is None or length.value is None or reading.oddities:
            continue
        told.append(f"{reading.engine} {length.value:.3f}")
        rounds = "" if reading.rounds is None else f" in {reading.rounds:.0f} rounds"
        numbers = {"length": length.value, "k": count, "rounds": reading.rounds}
        if (reading.rounds or _MANY) < _MANY:
            continue
        if code == "accepts-everything" and count and length.value >= count + 0.9995:
            text = f"{reading.engine} accepts all {count} proposals of every round{rounds}: {length.value:.3f} tokens a round"
            remedy = "look at the text: '!!!!' or a loop means logits of NaN, which agree with everything; check number formats and kernels"
            return confirmed(Fault(code, "server", (Evidence(text, numbers),), remedy, 0.7))
        if code == "accepts-nothing" and length.value <= 1.0005:
            text = f"{reading.engine} accepts nothing{rounds}: {length.value:.3f} tokens a round, the target's own alone"
            remedy = "look for an lm_head or embedding that was never loaded, then for stale weights, NaN, and a length beyond the draft's"
            return confirmed(Fault(code, "server", (Evidence(text, numbers),), remedy, 0.65, shadow=("head-missing", "weights-not-finite")))
    return ruled_out(f"some proposals are accepted and some are not: {', '.join(told)}") if told else untestable("no length is reported")


def drift(exam: Examination) -> Outcome:
    assert exam.exhibits.log is not None
    lengths = read_log(exam.exhibits.log, told(exam)).lengths
    if len(lengths) < 9:
        return untestable(f"the log has {len(lengths)} lines on acceptance, too few for a trend")
    third = len(lengths) // 3
    parts = [lengths[:third], lengths[third:-third], lengths[-third:]]
    first, middle, last = (sum(part) / len(part) for part in parts)
    spread = (
        sum((one - first) ** 2 for one in parts[0]) / len(parts[0]) + sum((one - last) ** 2 for one in parts[2]) / len(parts[2])
    ) ** 0.5
    numbers = {"first": first, "middle": middle, "last": last, "lines": len(lengths)}
    text = f"acceptance length went from {first:.2f} over {middle:.2f} to {last:.2f} in {len(lengths)} lines of the log"
    drop = first - last
    if drop > max(_DRIFT * max(first - 1, 0.05), 2.5 * spread / third**0.5) and first >= middle - 0.01 >= last - 0.02:
        remedy = "restart and compare; if it comes back, switch the prefix cache off: stale blocks, or weights updated without the draft"
        return confirmed(Fault("drift", "server", (Evidence(text, numbers),), remedy, 0.6))
    return suspected(text, **numbers) if drop > 0.2 * max(first - 1, 0.05) else ruled_out(text, **numbers)


def load(exam: Examination) -> Outcome:
    """Acceptance that falls with the load of the server: what the clearest of the falls speaks for."""
    from eyas.doctor.log_trends import after_update, falls, last_run, lines_of
    from eyas.doctor.reading_files import read_text

    assert exam.exhibits.log is not None
    text = last_run(read_text(exam.exhibits.log))[0]
    lines = lines_of(text)
    update = after_update(text)
    if update is not None:
        line, fall = update
        words = f"acceptance length is {fall.before:.2f} before and {fall.after:.2f} behind the line {line!r}"
        numbers = {"before": fall.before, "after": fall.after, "sigmas": fall.sigmas}
        remedy = "update the draft (and its copies of embedding and head) with the target, and look at the acceptance after each update"
        return confirmed(Fault("draft-stale", "server", (Evidence(words, numbers),), remedy, 0.7, covers=("drift",)))
    found = falls(lines)
    if not found:
        return ruled_out(f"in {len(lines)} lines of the log acceptance does not fall with requests at once, lengths or cache hits")
    code, fall = next(iter(found.items()))
    others = tuple(Evidence(other.text()) for other in list(found.values())[1:])
    numbers = {"low": fall.low, "high": fall.high, "before": fall.before, "after": fall.after, "sigmas": fall.sigmas}
    return confirmed(Fault(code, "server", (Evidence(fall.text(), numbers), *others), _LOAD[code], 0.6))


_LOAD = {
    "batch-variant": "send the same prompts alone and together: if acceptance differs, rows of a batch are mixed or padded wrongly",
    "rope-range": "compare acceptance by length: the draft's positions or RoPE scaling end before the texts do",
    "cache-variant": "send the same prompts with the prefix cache off: if acceptance rises, cached blocks of the draft are stale",
}
