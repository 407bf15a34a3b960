"""What engines may feed a draft's slots instead, and under which code that is told."""

from __future__ import annotations

from itertools import permutations

import pytest

from eyas.doctor.checks.taps import default_boundaries
from eyas.doctor.server.explain import _feeds

LAYERS = 30


@pytest.mark.parametrize("here", list(permutations(default_boundaries(LAYERS))))
def test_the_same_states_in_another_order_are_no_other_states(here):
    """Also where the order that was lost is the one of the engines' default layers."""
    codes = {tuple(boundaries): code for boundaries, code in reversed(list(_feeds(list(here), LAYERS)))}
    assert {codes[order] for order in permutations(here)} == {"slot-order"}
    assert codes[tuple(boundary + 1 for boundary in here)] == "taps-engine"


def test_default_layers_that_are_others():
    codes = {tuple(boundaries): code for boundaries, code in _feeds([5, 10, 20], LAYERS)}
    assert codes[tuple(default_boundaries(LAYERS))] == "taps-engine"
    assert codes[10, 5, 20] == "slot-order"
