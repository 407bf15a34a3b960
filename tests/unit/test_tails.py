"""Rows that are right up to a position: where they change is found, and what merely differs here and there is not taken for it."""

from __future__ import annotations

import pytest
import torch

from eyas.capture.tails import changes_at

ALLOWED = 0.05
POSITION = torch.arange(4, 150)


def distances(change: int, before: float, behind: float, odd: float = 0.05) -> torch.Tensor:
    """Noise of either size, and a few rows on both sides that are as those of the other."""
    generator = torch.Generator().manual_seed(change)
    size = torch.where(change > POSITION, before, behind)
    swapped = torch.rand(len(POSITION), generator=generator) < odd
    size = torch.where(swapped, torch.where(change > POSITION, behind, before), size)
    return size * (1 + 0.3 * torch.rand(len(POSITION), generator=generator))


@pytest.mark.parametrize("change", [20, 40, 70, 110, 136])
@pytest.mark.parametrize("before", [0.0, 0.004, 0.02])
def test_the_position_of_the_change(change: int, before: float):
    (found,) = changes_at(distances(change, before, 0.3), POSITION, ALLOWED)
    assert abs(found - change) <= 2


@pytest.mark.parametrize(
    "found_N",
    [
        distances(500, 0.02, 0.3),  # right everywhere
        distances(0, 0.02, 0.3),  # wrong everywhere
        distances(500, 0.004, 0.3, odd=0.3),  # here and there, as routing at ties
        torch.linspace(0.01, 0.2, len(POSITION)),  # drifting
        distances(70, 0.004, 0.03),  # behind it still as near as rounding allows
    ],
    ids=["right", "wrong", "scattered", "drifting", "rounding"],
)
def test_what_is_no_change(found_N: torch.Tensor):
    assert changes_at(found_N, POSITION, ALLOWED) == ()


def test_several_sequences_change_each_at_its_own_position():
    found = changes_at(torch.cat([distances(50, 0.01, 0.4), distances(90, 0.01, 0.4)]), POSITION.repeat(2), ALLOWED)
    assert len(found) == 2 and abs(found[0] - 50) <= 2 and abs(found[1] - 90) <= 2


def test_one_sequence_of_three_does_not_speak_for_all():
    right = distances(500, 0.01, 0.3)
    assert changes_at(torch.cat([right, distances(50, 0.01, 0.4), right]), POSITION.repeat(3), ALLOWED) == ()
