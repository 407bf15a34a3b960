"""Acceptance as the server counts it on our own prompts, beside the walk over the very answers that it gave.

Both are of the same text, so chance plays little part: in fp32 they agree round by round but for the last of an answer; in
bf16 a draft now and then prefers another token, in a few of a hundred rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, Slot, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.readings import Interval, Reading, read
from eyas.doctor.replay.trial import bench_of
from eyas.doctor.server.asking import Pass
from eyas.doctor.server.explain import explain
from eyas.doctor.server.walked import Walked, walked

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_SHARE = 0.05  # of the accepted drafts, and so many standard deviations of a mean over rounds of which a few of a hundred differ
_SPREAD, _DEVIATIONS = 0.33, 3.0
_LESS, _FEWEST = 0.9, 40  # share of accepted drafts below which one pass is worse than another; rounds that show it


@dataclass(frozen=True)
class Row:
    """What one pass showed, and what the draft as it came gives on its answers. `reading` has a length and its rounds."""

    made: Pass
    reading: Reading
    expected: Walked

    @property
    def served(self) -> float:
        length = self.reading.acceptance_length
        assert length is not None
        assert length.value is not None
        return length.value

    @property
    def wanted(self) -> float:
        return self.expected.length

    @property
    def loss(self) -> float:
        """Accepted drafts a round that are missing."""
        return self.wanted - self.served

    @property
    def slack(self) -> float:
        """Of the accepted drafts a round: what rounding explains."""
        return _SHARE * (self.wanted - 1) + _DEVIATIONS * _SPREAD * (self.reading.rounds or 1.0) ** -0.5

    @property
    def is_below(self) -> bool:
        return self.loss > self.slack

    @property
    def is_above(self) -> bool:
        return self.loss < -self.slack


def compare(exam: Examination) -> Outcome:
    """With one request at a time first: what is lost there, no batch has taken."""
    asking = exam.asking
    assert asking is not None
    if _without_rounds(asking.alone):
        return untestable("the server made no round of speculation")
    rows = [row for made in (asking.alone, asking.together) if (row := _row(exam, made)) is not None]
    if not rows:
        return untestable(_why_uncounted(asking.alone))
    exam.measured["expected"] = max(rows, key=lambda row: row.reading.rounds or 0.0).expected.to_json()
    exam.measured["served"] = [{"reported": row.reading.to_json(), "expected": row.expected.to_json()} for row in rows]
    evidence = tuple(_evidence(row) for row in rows)
    low = [row for row in rows if row.is_below]
    if low:
        return _lost(exam, rows, low[-1], evidence)
    if any(row.is_above for row in rows):
        return suspected(f"{evidence[-1].text}: it serves another draft than --draft, or another K", **evidence[-1].numbers)
    return ruled_out("; ".join(item.text for item in evidence), **evidence[-1].numbers)


def speculates(exam: Examination) -> Outcome:
    """Whether the server makes any proposal at all. It is a fault only where a draft is given that it should use."""
    asking = exam.asking
    assert asking is not None
    made = asking.alone
    if isinstance(made.figures, str):
        return untestable(made.figures)
    tokens = sum(len(reply.tokens or ()) for reply in made.replies)
    if not _without_rounds(made):
        count = f" of up to {asking.num_draft_tokens} proposals" if asking.num_draft_tokens else ""
        return ruled_out(f"{made.figures.rounds:g} rounds{count} in {tokens} tokens", rounds=made.figures.rounds, tokens=tokens)
    silent = "has no counter of drafts" if asking.num_draft_tokens is None else f"is set to {asking.num_draft_tokens} proposals"
    text = f"in {tokens} tokens of {len(made.replies)} answers {asking.server.about.name} made no round of speculation; it {silent}"
    numbers = {"tokens": tokens, "rounds": 0}
    if exam.exhibits.draft is None:
        return suspected(f"{text}: it serves the target alone", **numbers)
    return confirmed(Fault("served-below", "server", (Evidence(text, numbers),), _START, 0.95))


_START = (
    "start it with the draft (vLLM: --speculative-config, SGLang: --speculative-algorithm EAGLE3 with --speculative-draft-model-path; "
    "eyas export says how), and look in its log for why it went without"
)


def _without_rounds(made: Pass) -> bool:
    return not isinstance(made.figures, str) and made.figures.rounds == 0


def _why_uncounted(made: Pass) -> str:
    return made.figures if isinstance(made.figures, str) else "the server's counts do not make an acceptance by position"


def _lost(exam: Examination, rows: list[Row], low: Row, evidence: tuple[Evidence, ...]) -> Outcome:
    if low is not rows[0] and low.loss - rows[0].loss > rows[0].slack + low.slack:
        remedy = "serve fewer requests at once, and report this to the engine"
        return confirmed(Fault("batch-variant", "server", evidence, remedy, 0.84, shadow=("served-below",)))
    asking = exam.asking
    assert asking is not None
    found = explain(exam, low.made, low.reading, asking.server.about.name)
    if found is None or found.code == "served-below":
        words = "none of the usual wrong wirings gives what the server shows" if found is None else found.text
        return confirmed(Fault("served-below", "server", (Evidence(words), *evidence), f"{_hint(low)}; {_CAPTURE}", 0.8))
    declared = bench_of(exam).given.taps
    if found.taps != declared and all(slot.found in (None, slot.expected) for slot in exam.slots):
        exam.slots = tuple(Slot(slot, str(tap), str(fed)) for slot, (tap, fed) in enumerate(zip(declared, found.taps, strict=True)))
    return confirmed(Fault(found.code, "server", (Evidence(found.text), *evidence), found.remedy, 0.87, shadow=("served-below",)))


_CAPTURE = "capture what it feeds the draft and compare: eyas trace check"


def _hint(row: Row) -> str:
    seen, wanted = row.reading.conditional[:1], row.expected.conditional[:1]
    if not seen or seen[0] is None or wanted[0] is None:
        return "the loss is inside of the server"
    if (seen[0].value or 0.0) < (1 - _SHARE) * wanted[0]:
        return "already the first position is too low: look at the states that it feeds, the order of slots, norms, the vocabulary map"
    return "the first position is as it should be, the later ones are not: look at the state fed back, positions and RoPE"


def accepted_less(one: Pass, other: Pass) -> str | None:
    """In words, if the second of two passes with the same answers accepted clearly fewer drafts."""
    if isinstance(one.figures, str) or isinstance(other.figures, str):
        return None
    before, after = _length(one), _length(other)
    rounds = other.figures.rounds or 0.0
    if before is None or after is None or rounds < _FEWEST or after - 1 >= _LESS * (before - 1) - _DEVIATIONS * _SPREAD * rounds**-0.5:
        return None
    return f"only {after:.2f} tokens a round instead of {before:.2f}: what the draft reads from a cache is not what it would compute"


def _length(made: Pass) -> float | None:
    assert not isinstance(made.figures, str)
    found = read(made.figures).acceptance_length
    return None if found is None else found.value


def _row(exam: Examination, made: Pass) -> Row | None:
    """None where the server's counters say nothing; raises UserError where the draft cannot be walked."""
    if isinstance(made.figures, str):
        return None
    reading = read(made.figures)
    if reading.acceptance_length is None or reading.acceptance_length.value is None or not reading.num_draft_tokens:
        return None
    return Row(made, reading, walked(exam, made, reading.num_draft_tokens))


def _evidence(row: Row) -> Evidence:
    reading, expected = row.reading, row.expected
    positions: list[dict[str, Any]] = []
    words = []
    for place, (seen, wanted) in enumerate(zip(reading.conditional, expected.conditional, strict=False)):
        if seen is None or seen.value is None or wanted is None:
            continue
        positions.append({"position": place, "expected": wanted, "served": seen.value, "low": seen.low, "high": seen.high})
        words.append(f"{percent(seen.value)} of {percent(wanted)}{_mark(seen, wanted)}")
    lengths = f"{row.served:.2f} tokens a round, {row.wanted:.2f} expected"
    text = f"{reading.where}: {lengths} (K = {reading.num_draft_tokens}, {reading.rounds:g} rounds)"
    return Evidence(
        f"{text}; by position {', '.join(words)}" if words else text,
        {"served": row.served, "expected": row.wanted, "rounds": reading.rounds, "positions": positions},
    )


def _mark(seen: Interval, wanted: float) -> str:
    return "" if seen.low <= wanted <= seen.high else " (!)"
