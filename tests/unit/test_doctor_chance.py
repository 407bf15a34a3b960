"""What is beyond chance: rows that repeat one another count once, and strange texts want more."""

from __future__ import annotations

import torch

from eyas.doctor.replay.measuring import Comparison, Result, compare


def result(hits: torch.Tensor, log_prob: torch.Tensor, block: torch.Tensor) -> Result:
    return Result(hits, log_prob, torch.zeros(len(hits), dtype=torch.long), torch.zeros(len(hits), dtype=torch.long), block)


def pair(repeats: int, blocks: int, seed: int = 0) -> Comparison:
    """`blocks` draws of no effect, each repeated: as often better as worse, but for chance."""
    generator = torch.Generator().manual_seed(seed)
    luck = torch.randn(blocks, generator=generator).repeat_interleave(repeats)
    block = torch.arange(blocks).repeat_interleave(repeats)
    before = result(luck < -0.5, -luck.clamp(-1, 1), block)
    after = result(luck > 0.5, luck.clamp(-1, 1), block)
    return compare(after, before)


def test_repeating_rows_makes_nothing_more_certain():
    single, repeated = pair(1, 60), pair(20, 60)
    assert abs(repeated.z) < abs(single.z) * 1.1
    assert repeated.p > 0.1 * single.p


def test_an_effect_in_all_texts_is_certain():
    block = torch.arange(60).repeat_interleave(20)
    hits = (torch.arange(1200) % 10) < 6
    better = (torch.arange(1200) % 10) < 7
    found = compare(result(better, better.float(), block), result(hits, hits.float(), block))
    assert found.p < 1e-4
    assert found.z > 8
    assert found.decisive(False)


def test_on_strange_texts_a_small_gain_is_none():
    small = Comparison(before=0.76, after=0.85, gain=0.09, nats=0.08, p=1e-6, z=9.0)
    large = Comparison(before=0.3, after=0.6, gain=0.3, nats=0.9, p=1e-6, z=9.0)
    assert small.decisive(False)
    assert not small.decisive(False, proven=False)
    assert large.decisive(False, proven=False)


def test_a_draft_that_is_only_surer_of_itself_is_not_better():
    """Of a norm twice as long every row's probability rises, and no choice changes."""
    assert not Comparison(before=0.8, after=0.8, gain=0.0, nats=0.14, p=1.0, z=20.0).decisive(False)
