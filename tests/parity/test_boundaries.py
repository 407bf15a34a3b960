"""The states that the hooks see are the states that transformers reports, alone and in a batch."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.capture.forward import capture_batch
from eyas.taps import Tap
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny import TINY_FAMILIES

FAMILIES = TINY_FAMILIES
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=FAMILIES)
def target(request, tiny_targets) -> Target:
    return load_target(str(tiny_targets(request.param)), device=CPU, dtype=torch.float32)


def texts(vocab_size: int, lengths=(70, 3, 41, 1, 64, 22, 50, 9)) -> list[list[int]]:
    """Longer than gemma's window of 32, and of unequal lengths."""
    rng = random.Random(7)
    return [[rng.randrange(1, vocab_size) for _ in range(length)] for length in lengths]  # 0 pads: its embedding is zero


def all_taps(target: Target) -> list[Tap]:
    return [Tap(boundary) for boundary in range(target.num_layers + 1)] + [Tap(None)]


def states(target: Target, batch: list[list[int]]) -> list[torch.Tensor]:
    """Every state of every text: [T, number of taps, H]."""
    captured = capture_batch(target, batch, all_taps(target), want_top1=False)
    return [one.states.unflatten(-1, (-1, target.hidden_size)) for one in captured]


def row_error(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (found.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1)


def test_every_boundary_is_the_one_transformers_reports(target: Target):
    text = texts(target.vocab_size)[0]
    with torch.no_grad():
        reported = target.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    found = states(target, [text])[0]
    assert len(reported) == target.num_layers + 1
    for boundary in range(target.num_layers):
        assert row_error(found[:, boundary], reported[boundary][0]).max() <= 1e-5, boundary
    final, last_boundary = found[:, target.num_layers + 1], found[:, target.num_layers]
    assert row_error(final, reported[-1][0]).max() <= 1e-5, "transformers' last entry is the state after the final norm"
    assert row_error(last_boundary, reported[-1][0]).median() > 1e-2, "and not the last boundary"
    assert row_error(target.norm(last_boundary), final).max() <= 1e-6


def test_top1_is_what_the_whole_model_says(target: Target):
    for text, captured in zip(texts(target.vocab_size), capture_batch(target, texts(target.vocab_size), ()), strict=True):
        with torch.no_grad():
            logits = target.model(input_ids=torch.tensor([text])).logits[0]
        assert torch.equal(captured.top1, logits.argmax(-1))
        assert row_error(target.head(captured.final), logits).max() <= 1e-5, "scale and softcap are the model's own"


def test_a_batch_of_eight_gives_the_states_of_eight_batches_of_one(target: Target):
    """No router of these fixed models stands at a tie on these fixed texts, so mixtures of experts need no exception here."""
    batch = texts(target.vocab_size)
    for text, together in zip(batch, states(target, batch), strict=True):
        assert row_error(together, states(target, [text])[0]).max() <= 1e-5


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_bf16_batch_is_no_farther_from_fp32_than_a_bf16_text_alone(tiny_targets, family: str):
    folder = str(tiny_targets(family))
    exact = load_target(folder, device=CPU, dtype=torch.float32)
    rounded = load_target(folder, device=CPU, dtype=torch.bfloat16)
    batch = texts(exact.vocab_size)
    wanted = torch.cat(states(exact, batch))
    together = row_error(torch.cat(states(rounded, batch)), wanted)
    alone = row_error(torch.cat([states(rounded, [text])[0] for text in batch]), wanted)
    assert (together.mean(0) <= 1.5 * alone.mean(0)).all()
