"""Which texts of a foreign dump are held against the target: some from every part of it, since files of several runs get mixed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from eyas.capture.fingerprint import MIN_POSITIONS
from eyas.formats.dumps.index import IndexedText
from eyas.formats.dumps.sample import DumpFormat, ForeignSample

PROBE_POSITIONS = 2 * MIN_POSITIONS
_PARTS = 8


def choose(texts: Sequence[IndexedText]) -> list[int]:
    """Numbers of one text of each eighth of the dump, the one nearest to the length that a verdict needs; more if all are short."""
    parts = min(_PARTS, len(texts))
    edges = [part * len(texts) // parts for part in range(parts + 1)]
    by_fit = sorted(range(len(texts)), key=lambda number: abs(texts[number].length - PROBE_POSITIONS))
    chosen = [next(number for number in by_fit if start <= number < end) for start, end in pairwise(edges)]
    for number in by_fit:
        if sum(texts[one].length for one in chosen) >= PROBE_POSITIONS:
            break
        if number not in chosen:
            chosen.append(number)
    return sorted(chosen)


def read_probes(fmt: DumpFormat, texts: Sequence[IndexedText]) -> list[ForeignSample]:
    """The chosen texts, whole: rows of a text may depend on its length."""
    probes = []
    for number in choose(texts):
        text = texts[number]
        probes.append(next(sample for place, sample in enumerate(fmt.read(text.file)) if place == text.number))
    return probes
