"""Speculative sampling keeps the target's distribution: a toy whose probabilities are known, 200,000 samples a case.

The target speaks 8 tokens, the draft knows 5 of them, and both look at the token before. The emitted tokens pass through
the engine's own functions, all rows at once. Two mutants of the accept rule must fail the same test.
"""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from eyas.engine import verify
from eyas.engine.request import SamplingParams
from eyas.engine.sampling import SamplingBatch, draw, probabilities

NUM_SAMPLES = 200_000
SIGNIFICANCE = 1e-3
DRAFT_IDS = torch.tensor([0, 2, 3, 5, 7])
_RANDOM = torch.Generator().manual_seed(11)
TARGET_LOGITS = torch.randn(8, 8, generator=_RANDOM) * 1.5  # by the token before
DRAFT_LOGITS = TARGET_LOGITS[:, DRAFT_IDS] + torch.randn(8, 5, generator=_RANDOM)
FIRST = torch.tensor([0.3, 0.1, 0.05, 0.15, 0.1, 0.1, 0.1, 0.1])  # of the token that the prefill samples

CASES = [(temperature, top_p, k) for temperature in (0.7, 1.0) for top_p in (0.9, 1.0) for k in (1, 2, 3, 4)]
MUTANT_CASES = [(temperature, top_p, k) for temperature, top_p in ((0.7, 0.9), (1.0, 1.0)) for k in (1, 2, 3, 4)]


def tables(temperature: float, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's and the draft's distributions after each token, both [8, 8]; the draft's is zero on what it lacks."""
    batch = SamplingBatch.of([SamplingParams(2, temperature, top_p)], torch.device("cpu"))
    p_88 = probabilities(TARGET_LOGITS[None], batch, "target")[0]
    q_88 = torch.zeros(8, 8)
    q_88[:, DRAFT_IDS] = probabilities(DRAFT_LOGITS[None], batch, "draft")[0]
    return p_88, q_88


def two_tokens(p_88, q_88, k: int, seed: int, *, told_KV=lambda q_MKV, proposed_MK: q_MKV, ragged: bool = False) -> torch.Tensor:
    """The two tokens [N, 2] that follow the first sampled one, emitted by as many rounds as it takes.

    `told_KV` gives what the accept rule is told of the draft's probabilities.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    last_N = draw(FIRST.expand(NUM_SAMPLES, 8), uniform(NUM_SAMPLES))
    out_N2 = torch.zeros(NUM_SAMPLES, 2, dtype=torch.long)
    done_N = torch.zeros(NUM_SAMPLES, dtype=torch.long)
    while (open_M := (done_N < 2).nonzero()[:, 0]).numel():
        tokens = [last_N[open_M]]
        for _ in range(k):
            tokens.append(draw(q_88[tokens[-1]], uniform(len(open_M))))
        token_MT = torch.stack(tokens, dim=1)
        proposed_MK = token_MT[:, 1:]
        draft_MKV = told_KV(q_88[token_MT[:, :-1]], proposed_MK)
        num_proposed_M = torch.randint(0, k + 1, (len(open_M),), generator=generator) if ragged else torch.full((len(open_M),), k)
        verdict = verify.verify_sampled(p_88[token_MT], draft_MKV, proposed_MK, num_proposed_M, uniform(len(open_M), k + 1))
        num_emitted_M = verdict.num_accepted_B + 1
        for place in range(2):
            source_M = place - done_N[open_M]
            has_M = (source_M >= 0) & (source_M < num_emitted_M)
            out_N2[open_M[has_M], place] = verdict.token_BT[has_M].gather(1, source_M[has_M, None])[:, 0]
        last_N[open_M] = verdict.token_BT.gather(1, verdict.num_accepted_B[:, None])[:, 0]
        done_N[open_M] += num_emitted_M
    return out_N2


def p_value(p_88: torch.Tensor, tokens_N2: torch.Tensor) -> float:
    """Of the joint of both tokens; 0 if a token was emitted that the target gives no probability."""
    expected = (FIRST.double() @ p_88.double())[:, None] * p_88.double()
    expected = expected.flatten() / expected.sum() * len(tokens_N2)
    observed = torch.bincount(tokens_N2[:, 0] * 8 + tokens_N2[:, 1], minlength=64).double()
    if bool((observed[expected == 0] > 0).any()):
        return 0.0
    rare = expected < 5
    cells = [torch.cat([counts[~rare], counts[rare].sum()[None]]) for counts in (observed, expected)]
    kept = cells[1] > 0
    return float(chisquare(cells[0][kept].numpy(), cells[1][kept].numpy()).pvalue)


@pytest.mark.parametrize(("temperature", "top_p", "k"), CASES)
def test_the_joint_of_two_tokens_is_the_targets(temperature, top_p, k):
    p_88, q_88 = tables(temperature, top_p)
    assert p_value(p_88, two_tokens(p_88, q_88, k, seed=k)) > SIGNIFICANCE


def test_rows_with_fewer_proposals_keep_the_distribution():
    p_88, q_88 = tables(1.0, 0.9)
    assert p_value(p_88, two_tokens(p_88, q_88, 4, seed=9, ragged=True)) > SIGNIFICANCE


@pytest.mark.parametrize(("temperature", "top_p", "k"), MUTANT_CASES)
def test_a_mutant_without_residual_resampling_fails(temperature, top_p, k, monkeypatch):
    monkeypatch.setattr(verify, "residual", lambda p_BV, q_BV: p_BV)
    p_88, q_88 = tables(temperature, top_p)
    assert p_value(p_88, two_tokens(p_88, q_88, k, seed=k)) < SIGNIFICANCE


@pytest.mark.parametrize(("temperature", "top_p", "k"), MUTANT_CASES)
def test_a_mutant_that_does_not_pass_the_drafts_probabilities_fails(temperature, top_p, k):
    filler = float(k % 2)  # what stands in the buffer that nobody filled
    p_88, q_88 = tables(temperature, top_p)
    tokens_N2 = two_tokens(p_88, q_88, k, seed=k, told_KV=lambda q_MKV, proposed_MK: torch.full_like(q_MKV, filler))
    assert p_value(p_88, tokens_N2) < SIGNIFICANCE


def test_taking_a_sampled_draft_for_a_certain_one_only_costs_acceptance():
    """No mutant: whatever token a draft is certain of, the rule keeps the target's distribution, so it does for a random one."""
    p_88, q_88 = tables(1.0, 0.9)
    tokens_N2 = two_tokens(p_88, q_88, 2, seed=2, told_KV=lambda q_MKV, proposed_MK: torch.nn.functional.one_hot(proposed_MK, 8).float())
    assert p_value(p_88, tokens_N2) > SIGNIFICANCE
