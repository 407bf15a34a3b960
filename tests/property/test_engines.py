"""Every row of the engines' tables against every wiring of a small target: plans feed what they say, and miss nothing."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import combinations, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.engines.catalog import ENGINES
from eyas.engines.plan import config_keys, ids_for, plan
from eyas.engines.resolve import resolve
from eyas.engines.rows import CaptureRow, Engine, IdMeaning, Judged, ReaderRow, judge
from eyas.engines.target_facts import TargetFacts
from eyas.taps import Tap
from eyas.wiring import Wiring

N = 6
VERSIONS = [f"0.{minor}.0" for minor in range(16, 34)], [f"0.5.{patch}" for patch in range(9, 24)]
ROWS = [(engine, row) for engine in ENGINES.values() for row in engine.captures]


def _versions(engine: Engine) -> list[str]:
    return VERSIONS[0] if engine.name == "vllm" else VERSIONS[1]


def _first_version(engine: Engine, row: CaptureRow) -> Judged:
    return next(at for at in (judge(engine, version) for version in _versions(engine)) if at.holds(row))


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=lambda value: getattr(value, "name", None) or getattr(value, "versions", ""))
def test_a_plan_exists_exactly_where_some_list_of_ids_feeds_the_taps(engine: Engine, row: CaptureRow) -> None:
    """All lists of up to two ids are tried, one beyond both ends included."""
    judged = _first_version(engine, row)
    target = TargetFacts(row.architectures[0], N, 8, 9)
    fed = set()
    for ids in (*product(range(-1, N + 2), repeat=1), *product(range(-1, N + 2), repeat=2)):
        found = resolve(judged, target, config_keys(ids, Wiring()))
        if found.problem is None:
            fed.add(found.taps)
    boundaries = range(N + 1)
    for taps in (*permutations(boundaries, 1), *permutations(boundaries, 2)):
        wiring = Wiring(taps=tuple(Tap(number) for number in taps))
        found = plan(wiring, judged, target)
        wanted = tuple(sorted(wiring.taps, key=lambda tap: tap.boundary or 0))
        assert found.reachable == (wanted in fed), (taps, found.notes)
        if found.reachable:
            assert tuple(wiring.taps[slot] for slot in found.permutation) == wanted


# What the engines' own lines do with a list of ids, written down here once more.
SETTERS = {
    IdMeaning.BOUNDARY: lambda ids: list(ids),
    IdMeaning.OUTPUT: lambda ids: [number + 1 for number in ids],
    IdMeaning.FIRST_IS_ONE: lambda ids: [number + 1 for number in ids] if ids[0] == 1 else list(ids),
    IdMeaning.MAX_IS_N: lambda ids: list(ids) if max(ids) == N else [number + 1 for number in ids],
}


def fed_by(row: CaptureRow, ids: tuple[int, ...]) -> tuple[int, ...] | None:
    """The engine's walk through its layers: boundaries in the order in which they are appended; None where it fails or one is missing."""
    wanted = SETTERS[row.meaning](ids)
    appended = [boundary for boundary in range(N) if boundary in wanted]
    if N in wanted and row.no_last is None:
        appended.append(N)
    fails = 0 in appended and row.no_embedding is not None
    return None if fails or len(appended) < len(ids) else tuple(appended)


@functools.cache
def all_that_can_be_fed(row: CaptureRow) -> frozenset[tuple[int, ...]]:
    lists = (ids for count in (1, 2, 3) for ids in product(range(-1, N + 2), repeat=count))
    return frozenset(fed for ids in lists if (fed := fed_by(row, ids)) is not None)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_every_family_version_and_wiring_against_the_engines_own_walk(engine: Engine) -> None:
    """Up to three states in several orders, `final` among them: planned if and only if some list of ids feeds them, and then it does."""
    families = sorted({name for row in engine.captures for name in row.architectures})
    states = [*map(Tap, range(N + 1)), Tap(None)]
    threes = [order for taps in combinations(states, 3) for order in (taps, taps[::-1])]
    wirings = [Wiring(taps=taps) for taps in (*permutations(states, 1), *permutations(states, 2), *threes)]
    seen: set[tuple[CaptureRow | None, tuple[ReaderRow, ...]]] = set()
    answers = {True: 0, False: 0}
    for version, family in product(_versions(engine), families):
        judged = judge(engine, version)
        row = judged.capture(family)
        if (row, judged.readers()) in seen:
            continue
        seen.add((row, judged.readers()))
        target = TargetFacts(family, N, 8, 9)
        for wiring in wirings:
            found = plan(wiring, judged, target)
            answers[found.reachable] += 1
            boundaries = [tap.boundary for tap in wiring.taps]
            can = row is not None and None not in boundaries and tuple(sorted(boundaries)) in all_that_can_be_fed(row)
            assert found.reachable == can, (version, family, boundaries, found.notes)
            if not can or row is None:
                assert found.notes
                assert (found.config, found.flags) == ({}, ())
                continue
            for reader in judged.readers():
                ids = next(ids for key in reader.ids_keys if (ids := look_up(found.config, key)))
                assert fed_by(row, tuple(ids)) == tuple(sorted(boundaries)), (version, family, boundaries, ids)
            assert [wiring.taps[slot].boundary for slot in found.permutation] == sorted(boundaries)
            assert found.flags
    assert min(answers.values()) > 500


def look_up(config: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, {})
    return config


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_resolving_a_plan_gives_the_wirings_own_taps(data: st.DataObject) -> None:
    engine, row = data.draw(st.sampled_from(ROWS))
    version = data.draw(st.sampled_from([version for version in _versions(engine) if judge(engine, version).holds(row)]))
    judged = judge(engine, version)
    layers = data.draw(st.integers(4, 61))
    boundaries = data.draw(st.lists(st.integers(0, layers), min_size=1, max_size=5, unique=True))
    target = TargetFacts(data.draw(st.sampled_from(row.architectures)), layers, 8, 9)
    wiring = Wiring(taps=tuple(Tap(number) for number in boundaries))
    found = plan(wiring, judged, target)
    if not found.reachable:
        assert found.notes
        return
    for reader in judged.readers():
        fed = resolve(judged, target, found.config, reader.runner)
        assert fed.problem is None
        assert fed.taps == tuple(wiring.taps[slot] for slot in found.permutation) == found.taps


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_no_two_rows_speak_of_one_version(engine: Engine) -> None:
    architectures = {name for row in engine.captures for name in row.architectures}
    for version in _versions(engine):
        judged = judge(engine, version)
        assert judged.readers()
        for name in architectures:
            judged.capture(name)  # asserts
        for kind in ("llama", "qwen3", "mla"):
            judged.head(kind)
        assert judged.head("llama") is not None
    assert _versions(engine)[0] == engine.oldest
    assert _versions(engine)[-1] == engine.newest


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_every_row_holds_for_some_version_and_says_what_was_read(engine: Engine) -> None:
    for row in (*engine.readers, *engine.captures, *engine.heads):
        assert any(judge(engine, version).holds(row) for version in _versions(engine)), row
        assert row.evidence


def test_ids_are_found_for_all_pairs_of_a_plain_engine() -> None:
    for taps in combinations(range(N + 1), 2):
        for meaning in {row.meaning for _, row in ROWS}:
            ids = ids_for(tuple(Tap(number) for number in taps), meaning, N)
            assert ids is not None, (taps, meaning)
            assert sorted(meaning.boundaries(ids, N)) == list(taps)
