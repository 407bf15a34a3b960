"""The same on a real model: 20 prompts of SmolLM2-135M-Instruct, a few tokens each.

EYAS_SMOLLM2 names a folder that holds it; without one it is pulled, as `eyas model pull smollm2-135m` does, into a cache.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.engine.ties import explain_difference
from eyas.taps import parse_taps
from eyas.targets.catalog import pull
from eyas.targets.loading import load_target

TAPS = parse_taps("layer:1,layer:14,layer:28")
MAX_NEW_TOKENS = 12
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain photosynthesis to a child.",
    "def fibonacci(n):",
    "List three fruits.",
    "What is 17 + 25?",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "Summarise: The cat sat on the mat and slept all day.",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a SQL query that counts users.",
    "Tell me a short joke.",
    "What does HTTP stand for?",
    "Rewrite politely: give me the report now.",
    "How many legs has a spider?",
    "Name a large river in Africa.",
    "What is the opposite of hot?",
    "Write one sentence about autumn.",
    "Count from one to five.",
)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    if folder := os.environ.get("EYAS_SMOLLM2"):
        return Path(folder)
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eyas" / "smollm2-135m"
    if not (folder / "config.json").exists():
        pull("smollm2-135m", folder)
    return folder


@pytest.fixture(scope="module")
def target(smollm2):
    return load_target(str(smollm2), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts(target):
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    texts = [target.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    return [target.tokenizer.encode(text, add_special_tokens=False) for text in texts]


@pytest.fixture(scope="module")
def answers(target, prompts):
    """transformers' own."""
    found = []
    for prompt in prompts:
        ids_1T = torch.tensor([prompt])
        output_1T = target.model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        found.append(output_1T[0, len(prompt) :].tolist())
    return found


@pytest.fixture(scope="module")
def draft(target):
    """Untrained, but warm-started: it is right now and then."""
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=len(TAPS), draft_vocab_size=8192))
    draft.set_vocab_map(torch.zeros(8192, dtype=torch.long), torch.arange(target.vocab_size) < 8192)
    warm_start(draft, target)
    draft.use_embedding(target.embed)
    return draft.eval()


def test_twenty_prompts_are_answered_as_by_transformers(target, draft, prompts, answers):
    assert len(prompts) == 20
    with Engine(target, draft, TAPS, num_draft_tokens=3, max_batch=10) as engine:
        outputs = engine.generate(prompts, SamplingParams(MAX_NEW_TOKENS))
    assert [list(output.tokens) for output in outputs] == answers


def test_in_bf16_a_difference_is_a_tie(smollm2, draft, prompts):
    target = load_target(str(smollm2), device=torch.device("cpu"), dtype=torch.bfloat16)
    half = draft.bfloat16().use_embedding(target.embed) or draft
    with Engine(target, half, TAPS, num_draft_tokens=3, max_batch=4) as engine:
        outputs = engine.generate(prompts[:8], SamplingParams(MAX_NEW_TOKENS))
    with Engine(target) as engine:
        alone = engine.generate(prompts[:8], SamplingParams(MAX_NEW_TOKENS))
    for ours, reference in zip(outputs, alone, strict=True):
        difference = explain_difference(target, ours.prompt_ids, ours.tokens, reference.tokens)
        assert difference is None or difference.is_tie, difference.text()
