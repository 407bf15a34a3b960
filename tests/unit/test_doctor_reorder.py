"""Fewer changes are the likelier story: each cause is tried first once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, Tested, confirmed, ruled_out, untestable
from eyas.doctor.replay.reorder import try_orders

GIVEN = 40


class Bench:
    """The subject is the accuracy that it reaches, in percent."""

    def __init__(self) -> None:
        self.given = self.subject = GIVEN
        self.steps: list[tuple[Fault, int, int]] = []

    def mend(self, code: str, after: int) -> Outcome:
        fault = Fault(code, "draft", (Evidence(code),), "mend it", 0.9, verified=True)
        self.steps.append((fault, self.subject, after))
        self.subject = after
        return confirmed(fault)

    def as_good(self, left: int, right: int, nats: float) -> bool:
        return left >= right

    def note(self) -> None:
        pass


def hypothesis(code: str, bench: Bench, gains: dict[int, int]) -> Hypothesis:
    """Mends a draft of an accuracy in `gains`, to the accuracy there."""

    def run(exam: object) -> Outcome:
        after = gains.get(bench.subject)
        return ruled_out("nothing is better") if after is None else bench.mend(code, after)

    return Hypothesis(code, "replay", "claim", (), "test", "prediction", run)


def examined(bench: Bench, *order: Hypothesis) -> SimpleNamespace:
    exam = SimpleNamespace(faults=[], measured={})
    for item in order:
        exam.faults += item.run(exam).faults
    return exam


def orders(exam: SimpleNamespace, bench: Bench, *mending: Hypothesis) -> dict[str, str]:
    found = try_orders(exam, bench, mending, lambda item: Tested(item, item.run(exam), 0.0))
    return {item.hypothesis.code: item.outcome.judgement for item in found}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_cause_that_does_it_alone_takes_the_place_of_what_stood_in_for_it(bench: Bench):
    stand_in = hypothesis("norm-feedback", bench, {40: 50})
    cause = hypothesis("half-order", bench, {40: 85, 50: 80})
    exam = examined(bench, stand_in, cause)
    before = list(exam.faults)
    assert orders(exam, bench, stand_in, cause) == {"half-order": "confirmed", "norm-feedback": "ruled out"}
    assert (bench.subject, [fault.code for fault, _, _ in bench.steps]) == (85, ["half-order"])
    assert exam.faults == before, "the caller says what becomes of them"


def test_two_causes_stay_two(bench: Bench):
    left = hypothesis("half-order", bench, {40: 60, 50: 80})
    right = hypothesis("slot-order", bench, {40: 50, 60: 80})
    exam = examined(bench, left, right)
    steps = bench.steps
    assert orders(exam, bench, left, right) == {}
    assert bench.steps is steps
    assert bench.subject == 80


def test_one_cause_that_does_less_than_two_is_not_enough(bench: Bench):
    left = hypothesis("half-order", bench, {40: 60})
    right = hypothesis("slot-order", bench, {40: 70, 60: 80})
    exam = examined(bench, left, right)
    assert orders(exam, bench, left, right) == {}
    assert bench.subject == 80


def test_a_test_that_breaks_on_the_way_leaves_what_was_found(bench: Bench):
    left = hypothesis("half-order", bench, {40: 60})
    right = hypothesis("slot-order", bench, {60: 80})
    exam = examined(bench, left, right)
    broken = untestable("the test itself broke")
    assert try_orders(exam, bench, [left, right], lambda item: Tested(item, broken, 0.0)) == []
    assert (bench.subject, len(bench.steps)) == (80, 2)
