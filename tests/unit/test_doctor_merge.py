"""Findings as they are told: what follows from a cause is a part of it, what only looks alike stays apart, nothing is lost."""

from __future__ import annotations

import pytest
import torch

from eyas.doctor.hypothesis import Evidence, Fault
from eyas.doctor.joint import joined
from eyas.doctor.noise import is_noise, untrained_parts
from eyas.doctor.runner import merge


def fault(code: str, subject: str = "draft", **more: object) -> Fault:
    return Fault(code, subject, (Evidence(f"{code} seen in the {subject}"),), "mend it", **more)  # type: ignore[arg-type]


def told(*faults: Fault) -> list[tuple[str, str]]:
    return [(finding.code, finding.subject) for finding in merge(list(faults))]


def test_what_a_cause_covers_is_told_as_a_part_of_it_even_if_it_weighs_more():
    found = merge([fault("weights-broken", weight=0.5, covers=("keys-differ",)), fault("keys-differ", weight=0.9)])
    assert [item.code for item in found] == ["weights-broken"]
    assert [item.text for item in found[0].evidence] == ["weights-broken seen in the draft", "keys-differ seen in the draft"]
    assert found[0].weight == 0.9


def test_a_shadow_needs_its_cause_about_the_same_subject():
    changed = fault("dump-changed", "dump", shadow=("taps-shifted",))
    assert told(changed, fault("taps-shifted", "dump")) == [("taps-shifted", "dump")]
    assert told(changed, fault("taps-shifted", "draft")) == [("dump-changed", "dump"), ("taps-shifted", "draft")]


def test_two_that_each_claim_to_follow_from_the_other_are_both_told():
    left, right = fault("files-mixed", shadow=("dump-wiring",)), fault("dump-wiring", shadow=("files-mixed",))
    assert len(told(left, right)) == 2


def test_one_fault_seen_by_two_tests_is_told_once_with_what_both_measured():
    seen = fault("taps-other", weight=0.4, covers=("slot-order",))
    proven = fault("taps-other", weight=0.9, verified=True)
    found = merge([seen, proven, fault("slot-order", weight=0.5)])
    assert [(item.code, item.verified) for item in found] == [("taps-other", True)]


def test_tokens_that_moved_against_all_else_are_one_fault_and_two_of_the_three_are_two():
    three = [fault("pair-shift", "dump"), fault("label-shift", "dump"), fault("mask-shift", "dump")]
    assert told(*joined(three)) == [("pair-shift", "dump")]
    assert len(told(*joined(three[:2]))) == 2
    assert len(told(*joined([*three[:2], fault("mask-shift", "draft")]))) == 3


@pytest.mark.parametrize("shape", [(64, 192), (192, 1152), (576, 576)])
def test_fresh_numbers_are_noise_and_a_trained_direction_is_not(shape: tuple[int, int]):
    generator = torch.Generator().manual_seed(shape[0])
    normal = 0.02 * torch.randn(shape, generator=generator)
    assert is_noise(normal)
    assert is_noise(normal.bfloat16())
    assert is_noise(torch.rand(shape, generator=generator) - 0.5)
    left, right = torch.randn(shape[0], generator=generator), torch.randn(shape[1], generator=generator)
    learnt = 0.1 * shape[0] ** -0.5 * torch.outer(left, right) / right.norm() * shape[1] ** 0.5
    assert not is_noise(normal + 0.5 * learnt)
    assert not is_noise(normal * torch.linspace(0.5, 2.0, shape[0])[:, None])
    assert not is_noise(torch.zeros(shape))


def test_a_draft_that_is_noise_all_over_has_no_part_that_stands_out():
    generator = torch.Generator().manual_seed(0)
    names = ("fc.weight", "midlayer.mlp.up_proj.weight", "midlayer.mlp.down_proj.weight")
    noise = {name: torch.randn(64, 128, generator=generator) for name in names}
    assert untrained_parts(noise) == []
    trained = {name: tensor * torch.linspace(0.2, 2.0, 128) for name, tensor in noise.items()}
    assert untrained_parts(trained | {"fc.weight": noise["fc.weight"]}) == ["fc.weight"]
