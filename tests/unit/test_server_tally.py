"""Whose fault wrong tokens are, by what made them: hand-made counts."""

from __future__ import annotations

import pytest

from eyas.doctor.server.judging import Slip
from eyas.doctor.server.questions import Question
from eyas.doctor.server.tally import Share, Tally


def share(slips: int, tokens: int) -> Share:
    slip = Slip(Question("q", None, (1, 2)), (), 0, 3, 4, 9.0)
    return Share(tokens, (slip,) * slips)


@pytest.mark.parametrize(
    ("prefill", "first", "later", "other_target", "lossy", "by_caches"),
    [
        ((0, 48), (0, 48), (0, 200), False, False, False),  # healthy
        ((0, 48), (6, 48), (18, 200), False, True, False),  # the accept rule: also in first rounds
        ((0, 48), (0, 48), (30, 200), False, True, True),  # caches: only where something was taken back
        ((0, 48), (0, 48), (4, 200), False, True, False),  # too few to say: a first round would hardly show any
        ((11, 47), (17, 47), (82, 212), True, False, False),  # another target: wrong everywhere, by chance less in the few
        ((2, 48), (3, 48), (9, 200), True, False, False),  # quantised weights
        ((3, 48), (20, 48), (150, 200), True, True, False),  # another target, and lossy besides
    ],
)
def test_whose_fault(prefill, first, later, other_target, lossy, by_caches):
    tally = Tally(share(*prefill), share(*first), share(*later), ties=0, probed=True)
    assert (tally.other_target, tally.lossy, tally.by_caches) == (other_target, lossy, by_caches)
    assert not Tally(share(*prefill), share(*first), share(*later), ties=0, probed=False).by_caches
