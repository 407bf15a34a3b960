"""Greedy speculative decoding in fp32 equals transformers' own `generate`, token for token and in length.

Over two hundred prompts of tiny targets, with drafts that are hardly ever right and drafts that know most of the answers.
"""

from __future__ import annotations

import dataclasses
import fcntl
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from eyas.capture.forward import capture_batch
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.engine.drafter import Proposal
from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny import TinyTraining, make_tiny
from eyas.targets.tiny_text import tiny_chats

TAPS = parse_taps("embed,layer:0,layer:2")
MAX_NEW_TOKENS = 20
CASES = (
    *(f"{family}-{kind}" for family in ("llama", "qwen3", "deepseek_v3") for kind in ("random", "trained")),
    "deepseek_v32-random",  # taught ones of these two decode in test_made.py
    "kimi_k25-random",
)


@dataclass(frozen=True)
class Case:
    """A target, prompts, and what transformers answers."""

    is_trained: bool
    target: Target
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module", params=CASES)
def case(request, tiny_targets, shared_folder) -> Case:
    family, kind = request.param.split("-")
    folder = tiny_targets(family) if kind == "random" else briefly_trained(family, shared_folder)
    target = load_target(str(folder), device=torch.device("cpu"), dtype=torch.float32)
    prompts = [*chat_prompts(target, 20), *random_prompts(target, 14)]
    return Case(kind == "trained", target, prompts, [transformers_answer(target, prompt, MAX_NEW_TOKENS) for prompt in prompts])


def briefly_trained(family: str, shared_folder):
    """Trained just long enough to end its turns; once a session, whichever worker comes first."""
    folder = shared_folder / f"{family}-briefly-trained"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make_tiny(family, folder, trained=True, training=TinyTraining(num_steps=60))
    return folder


def chat_prompts(target: Target, count: int) -> list[list[int]]:
    tokenizer = target.tokenizer
    texts = [tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True) for chat in tiny_chats(count, seed=7)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def random_prompts(target: Target, count: int) -> list[list[int]]:
    """Of any tokens, from one token on."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(4, target.vocab_size, (1 + number // 2,), generator=generator).tolist() for number in range(count)]


def transformers_answer(target: Target, prompt: list[int], max_new_tokens: int) -> list[int]:
    ids_1T = torch.tensor([prompt])
    output_1T = target.model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=max_new_tokens)
    return output_1T[0, len(prompt) :].tolist()


KINDS: dict[str, dict[str, Any]] = {
    "mla": {
        "mla": MlaConfig(kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, q_lora_rank=32),
        "head_dim": 20,
        "num_key_value_heads": 4,
    },
    "narrower": {"hidden_size": 48, "own_embedding": True, "draft_vocab_size": 512, "lm_head_source": "embedding"},
    "shared head": {"draft_vocab_size": 512, "lm_head_source": "target", "qk_norm": True},
}


def make_draft(target: Target, draft_vocab_size: int = 300, **kind: Any) -> Eagle3Draft:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = DraftConfig.from_target(target.config, num_taps=len(TAPS), draft_vocab_size=draft_vocab_size)
        draft = Eagle3Draft(dataclasses.replace(config, **kind))
        size = draft.config.draft_vocab_size
        ids_V = torch.randperm(target.vocab_size)[:size].sort().values
    draft.set_vocab_map(ids_V - torch.arange(size), torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids_V, True))
    draft.use_target(target)
    return draft.eval()


def know_answers(engine: Engine, case: Case, error_rate: float) -> None:
    """Put the true continuation in place of what the draft proposes, but for some errors; the draft runs all the same."""
    answers = {tuple(prompt): answer for prompt, answer in zip(case.prompts, case.answers, strict=True)}
    generator = torch.Generator().manual_seed(0)
    real = engine._propose

    def propose(turn):
        token_BK = real(turn).token_BK
        is_error_BK = torch.rand(token_BK.shape, generator=generator) < error_rate
        for row, request in enumerate(turn.requests):
            coming = answers[tuple(request.prompt)][len(request.tokens) :][: token_BK.shape[1]]
            token_BK[row, : len(coming)] = torch.tensor(coming, dtype=torch.long)
        return Proposal(torch.where(is_error_BK, (token_BK + 1) % case.target.vocab_size, token_BK), None)

    engine._propose = propose


def learn_answers(draft: Eagle3Draft, case: Case, chosen: slice, num_steps: int = 60) -> None:
    """Overfit the draft to some of the answers. Plain cross-entropy on all three steps."""
    target_to_draft = torch.full((case.target.vocab_size,), -100)
    target_to_draft[draft.to_target(torch.arange(draft.config.draft_vocab_size))] = torch.arange(draft.config.draft_vocab_size)
    pairs = list(zip(case.prompts, case.answers, strict=True))[chosen]
    texts = [prompt + answer for prompt, answer in pairs]
    token_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    captured = capture_batch(case.target, texts, TAPS, want_top1=False)
    states_BTS = torch.nn.utils.rnn.pad_sequence([one.states for one in captured], batch_first=True)
    label_BT = torch.full_like(token_BT, -100)
    for row, ((prompt, _), text) in enumerate(zip(pairs, texts, strict=True)):
        label_BT[row, len(prompt) : len(text)] = target_to_draft[token_BT[row, len(prompt) : len(text)]]
    optimizer = torch.optim.Adam(draft.parameters(), lr=4e-3)
    for _ in range(num_steps):
        loss = torch.zeros(())
        for step, output_BTH in enumerate(unroll(draft, token_BT, states_BTS, 3)):
            logits_BTV = draft.logits(output_BTH[:, : -2 - step])
            loss = loss + torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), label_BT[:, 2 + step :].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def assert_lossless(case: Case, engine: Engine, chosen: slice) -> list[Output]:
    with engine:
        outputs = engine.generate(case.prompts[chosen], SamplingParams(MAX_NEW_TOKENS))
    for output, answer in zip(outputs, case.answers[chosen], strict=True):
        assert list(output.tokens) == answer, f"prompt {output.prompt_ids}"
        assert output.finish_reason == ("stop" if answer[-1] in case.target.stop_ids else "length")
        assert 1 + sum(made.num_emitted for made in output.rounds) == len(answer)
    return outputs


def test_plain_decoding(case):
    assert_lossless(case, Engine(case.target), slice(None, None, 6))
    assert_lossless(case, Engine(case.target, max_batch=8), slice(None))


def test_a_draft_that_knows_nothing(case):
    draft = make_draft(case.target)
    for k in (1, 2, 3, 4):
        assert_lossless(case, Engine(case.target, draft, TAPS, k, max_batch=8), slice(k - 1, None, 4))
    assert_lossless(case, Engine(case.target, draft, TAPS, 3), slice(None, None, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_of_another_kind(case, kind):
    """Its figures are as good as any: what is proposed is proposed again by the steps run in a batch with the true tokens."""
    draft = make_draft(case.target, **KINDS[kind])
    for max_batch in (1, 4):
        engine = Engine(case.target, draft, TAPS, 3, max_batch)
        made: list[list[int]] = []
        real = engine._propose

        def propose(turn, real=real, made=made):
            proposal = real(turn)
            rows = [row for row in proposal.token_BK.tolist() if len(row) == 3]  # near the limit fewer are proposed
            made += [[*request.prompt, *request.tokens, *row] for request, row in zip(turn.requests, rows, strict=False)]
            return proposal

        engine._propose = propose
        assert_lossless(case, engine, slice(0, None, 9))
        assert_predicted(case, draft, made[:: max(1, len(made) // 12)])


def assert_predicted(case: Case, draft: Eagle3Draft, texts: list[list[int]]) -> None:
    """Each text ends in three proposals of the drafter; `unroll` must propose them too, reading the first two back."""
    for text in texts:
        states_1TS = capture_batch(case.target, [text], TAPS, want_top1=False)[0].states[None]
        row_11 = torch.tensor([[len(text) - 5]])
        with torch.no_grad():
            steps = unroll(draft, torch.tensor([text]), states_1TS, 3, row_11)
            proposed = [int(draft.to_target(draft.logits(output).argmax(-1))) for output in steps]
        assert proposed == text[-3:]


@pytest.mark.parametrize("error_rate", [0.0, 0.3])
def test_a_draft_that_knows_the_answers(case, error_rate):
    draft = make_draft(case.target)
    outputs: list[Output] = []
    for k, max_batch, chosen in ((1, 8, 0), (2, 8, 1), (3, 8, 2), (4, 8, 3), (9, 5, 1), (3, 1, 0)):
        engine = Engine(case.target, draft, TAPS, k, max_batch)
        know_answers(engine, case, error_rate)
        outputs += assert_lossless(case, engine, slice(chosen, None, 4))
    rounds = [made for output in outputs for made in output.rounds]
    assert sum(made.num_emitted for made in rounds) / len(rounds) > 1.5
    assert any(made.num_accepted >= 4 for made in rounds)
    if error_rate == 0.0:  # only what was never proposed was not accepted
        assert all(made.num_accepted == made.num_proposed for made in rounds)
    if case.is_trained:
        assert any(made.num_emitted == made.num_accepted for made in rounds)  # a stop token in an accepted run


def test_a_draft_that_has_learnt_the_answers(case):
    if not case.is_trained:
        return  # noise has nothing to be learnt
    draft = make_draft(case.target)
    chosen = slice(None, 20, 2)
    learn_answers(draft, case, chosen)
    outputs = assert_lossless(case, Engine(case.target, draft, TAPS, 3, max_batch=4), chosen)
    rounds = [made for output in outputs for made in output.rounds]
    assert sum(made.num_emitted for made in rounds) / len(rounds) > 1.25


def test_over_two_hundred_prompts_are_compared(case):
    assert len(case.prompts) * len(CASES) >= 200
    assert min(map(len, case.prompts)) == 1


def test_a_stop_token_inside_an_accepted_run_ends_the_answer(case):
    """Any token of the answer may be declared the stop token; the draft proposes the true continuation beyond it."""
    prompt = case.prompts[0]
    with Engine(case.target) as engine:
        answer = list(engine.generate([prompt], SamplingParams(MAX_NEW_TOKENS, ignore_eos=True))[0].tokens)
    draft = make_draft(case.target)
    for place in range(2, 9):
        stop = answer[place]
        expected = answer[: answer.index(stop) + 1]
        with Engine(case.target, draft, TAPS, num_draft_tokens=4) as engine:
            request = engine.add(prompt, SamplingParams(MAX_NEW_TOKENS))
            request.stop_ids = frozenset({stop})
            propose_the_truth(engine, answer)
            list(engine.run(request))
        assert request.tokens == expected
        assert request.finish_reason == "stop"
        assert sum(made.num_emitted for made in request.rounds) == len(expected) - 1


def propose_the_truth(engine: Engine, answer: list[int]) -> None:
    real = engine._propose

    def propose(turn):
        proposal = real(turn)
        coming = answer[len(turn.requests[0].tokens) :][: proposal.token_BK.shape[1]]
        proposal.token_BK[0, : len(coming)] = torch.tensor(coming)
        return proposal

    engine._propose = propose
