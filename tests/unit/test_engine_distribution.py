"""The whole engine keeps the target's distribution: what is wired wrongly between its parts shows here.

A target of 8 tokens and one layer, whose joint distributions can be written down by running every prefix once.
"""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.engine.sampling import SamplingBatch, probabilities
from eyas.taps import parse_taps
from eyas.targets.families import family_of
from eyas.targets.target import Target

PROMPT = [3, 1]
NUM_REQUESTS = 6000
TAPS = parse_taps("embed,layer:0")


@pytest.fixture(scope="module")
def target() -> Target:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=8,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=0.4,
            max_position_embeddings=64,
            eos_token_id=None,
        )
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return Target("toy", model, None, family_of("llama"), torch.device("cpu"), torch.float32, "", None, ())


@pytest.fixture(scope="module")
def draft(target) -> Eagle3Draft:
    """It knows 5 of the 8 tokens."""
    ids_V = torch.tensor([0, 2, 3, 5, 7])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        made = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=5))
        torch.nn.init.normal_(made.lm_head.weight, std=0.4)
    made.set_vocab_map(ids_V - torch.arange(5), torch.zeros(8, dtype=torch.bool).index_fill(0, ids_V, True))
    made.use_embedding(target.embed)
    return made.eval()


def joint(target: Target, params: SamplingParams) -> torch.Tensor:
    """Probabilities [8, 8, 8] of the first three tokens."""

    def after(prefixes: list[list[int]]) -> torch.Tensor:
        logits_BTV = target.model(input_ids=torch.tensor(prefixes)).logits[:, -1:]
        return probabilities(logits_BTV, SamplingBatch.of([params] * len(prefixes), target.device), "target")[:, 0].double()

    first_8 = after([PROMPT])[0]
    second_88 = after([[*PROMPT, a] for a in range(8)])
    third_888 = after([[*PROMPT, a, b] for a in range(8) for b in range(8)]).reshape(8, 8, 8)
    return first_8[:, None, None] * second_88[:, :, None] * third_888


@pytest.mark.parametrize(("temperature", "top_p", "top_k", "k"), [(1.0, 1.0, 0, 2), (0.7, 0.9, 0, 3), (1.0, 1.0, 4, 1)])
def test_the_joint_of_three_tokens_is_the_targets(target, draft, temperature, top_p, top_k, k):
    params = SamplingParams(3, temperature, top_p, top_k, seed=5)
    with Engine(target, draft, TAPS, num_draft_tokens=k, max_batch=1000) as engine:
        outputs = engine.generate([PROMPT] * NUM_REQUESTS, params)
    assert sum(made.num_accepted for output in outputs for made in output.rounds) > NUM_REQUESTS / 10
    tokens_N3 = torch.tensor([output.tokens for output in outputs])
    observed = torch.bincount(tokens_N3 @ torch.tensor([64, 8, 1]), minlength=512).double()
    expected = joint(target, params).flatten()
    expected *= len(tokens_N3) / expected.sum()
    assert not bool(observed[expected == 0].any())
    rare = expected < 5
    cells = [torch.cat([counts[~rare], counts[rare].sum()[None]]) for counts in (observed, expected)]
    kept = cells[1] > 0
    assert chisquare(cells[0][kept].numpy(), cells[1][kept].numpy()).pvalue > 1e-3
