"""Every row of the engines' tables against every wiring of a small target: plans feed what they say, and miss nothing."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.engines.catalog import ENGINES
from eyas.engines.plan import config_keys, ids_for, plan
from eyas.engines.resolve import resolve
from eyas.engines.rows import CaptureRow, Engine, Judged, judge
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
