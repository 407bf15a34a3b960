"""With what acceptance falls in a server's log: with requests at once, the length of texts, hits of the prefix cache; or after an update.

SGLang writes all of it in one line; vLLM writes its load in a line of its own, just before the line on acceptance:

    Decode batch, #running-req: 8, #token: 4096, ..., accept len: 2.31, ...
    Engine 000: ..., Running: 8 reqs, Waiting: 0 reqs, ..., Prefix cache hit rate: 41.2%

Lines are compared in two halves, those of the lower and those of the higher load. A log proves no cause: other requests may
be harder ones. So a fall counts only if it is large beside the spread within the halves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pvariance

_LENGTH = re.compile(r"(?:accept len|Mean acceptance length): ([\d.]+)")
_RUNNING = re.compile(r"(?:#running-req: |Running: )(\d+)")
_TOKENS = re.compile(r"#token: (\d+)")
_HITS = re.compile(r"Prefix cache hit rate: ([\d.]+)%")
_FEWEST = 6  # lines in each half
_LOST = 0.15  # of the drafts a round that must be lost
_SIGMAS = 5.0


@dataclass(frozen=True)
class Line:
    """One line on acceptance, and the load that it stood under; what a log does not say is None."""

    length: float
    running: float | None
    context: float | None
    hits: float | None


@dataclass(frozen=True)
class Fall:
    """Acceptance length below and above the middle of `axis`. `sigmas`: the difference in its own standard errors."""

    axis: str
    low: float
    high: float
    before: float
    after: float
    sigmas: float
    lines: int

    def text(self) -> str:
        around = f"{self.before:.2f} at {self.axis} of {self.low:.3g} on average, {self.after:.2f} at {self.high:.3g}"
        return f"acceptance length is {around} ({self.lines} lines of the log)"


def lines_of(text: str) -> list[Line]:
    found: list[Line] = []
    running: float | None = None
    hits: float | None = None
    for line in text.splitlines():
        load = _RUNNING.search(line)
        running = float(load[1]) if load else running
        share = _HITS.search(line)
        hits = float(share[1]) if share else hits
        length = _LENGTH.search(line)
        if length is None:
            continue
        tokens = _TOKENS.search(line)
        context = float(tokens[1]) / running if tokens and running else None
        found.append(Line(float(length[1]), running, context, hits))
    return [line for line in found if line.length >= 1.0]


_BEGINNINGS = (re.compile(r"non-default args: |server_args=ServerArgs\("), re.compile(r"Started server process \["))


def last_run(text: str) -> tuple[str, int]:
    """What was logged since the last start of the server that has lines on acceptance behind it, and how many such starts there are.

    Two runs may differ in draft, K and load, so no trend goes from one to the other. The engines write their arguments
    first; a log without these begins where the web server does.
    """
    starts = next((found for pattern in _BEGINNINGS if (found := [match.start() for match in pattern.finditer(text)])), [])
    runs = [run for begin, end in pairwise((0, *starts, len(text))) if _LENGTH.search(run := text[begin:end])]
    return (runs[-1], len(runs)) if runs else (text, 0)


_UPDATE = re.compile(
    r"update_weights|weights? (?:was |were |ha(?:s|ve) been )?updated|updat(?:ed|ing) (?:the )?weights|wake_up|resume_memory_occupation",
    re.IGNORECASE,
)


def after_update(text: str) -> tuple[str, Fall] | None:
    """The line on an update of weights behind which acceptance falls the furthest, and the fall; None if it falls behind none."""
    found: list[tuple[str, Fall]] = []
    lengths: list[float] = []
    events: list[tuple[int, str]] = []
    for line in text.splitlines():
        length = _LENGTH.search(line)
        if length is not None and float(length[1]) >= 1.0:
            lengths.append(float(length[1]))
        elif _UPDATE.search(line):
            events.append((len(lengths), line.strip()[:120]))
    for place, line in events:
        points = [(0.0, length) for length in lengths[:place]] + [(1.0, length) for length in lengths[place:]]
        fall = _fall("updates of the weights", points)
        if fall is not None:
            found.append((line, fall))
    return max(found, key=lambda item: item[1].before - item[1].after, default=None)


_AXES: dict[str, tuple[str, Callable[[Line], float | None]]] = {
    "batch-variant": ("a number of requests", lambda line: line.running),
    "rope-range": ("a mean number of tokens a request", lambda line: line.context),
    "cache-variant": ("a hit rate (%) of the prefix cache", lambda line: line.hits),
}


def falls(lines: Sequence[Line]) -> dict[str, Fall]:
    """By the code of what it speaks for, those that are beyond chance and worth a word; the clearest first."""
    found = {}
    for code, (axis, value_of) in _AXES.items():
        fall = _fall(axis, [(value, line.length) for line in lines if (value := value_of(line)) is not None])
        if fall is not None:
            found[code] = fall
    return dict(sorted(found.items(), key=lambda item: -item[1].sigmas))


def _fall(axis: str, points: Sequence[tuple[float, float]]) -> Fall | None:
    values = sorted(value for value, _ in points)
    if len(values) < 2 * _FEWEST or values[0] == values[-1]:
        return None
    middle = max(values[len(values) // 2], next(value for value in values if value > values[0]))
    low, high = [point for point in points if point[0] < middle], [point for point in points if point[0] >= middle]
    if min(len(low), len(high)) < _FEWEST or fmean(value for value, _ in high) < 1.5 * fmean(value for value, _ in low):
        return None
    before, after = fmean(length for _, length in low), fmean(length for _, length in high)
    error = sum(pvariance([length for _, length in part]) / len(part) for part in (low, high)) ** 0.5
    sigmas = (before - after) / max(error, 0.002)
    if before - after <= _LOST * max(before - 1.0, 0.05) or sigmas < _SIGMAS:
        return None
    ends = (fmean(value for value, _ in low), fmean(value for value, _ in high))
    return Fall(axis, *ends, before, after, sigmas, len(points))
