"""The engine's two caches against ones made from scratch, poison in every unused place, and what must be an error.

Everything in fp32 on a tiny random target, so that a state that is only slightly off shows.
"""

from __future__ import annotations

import pytest
import torch

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.engine.drafter import Drafter, Proposal
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.engine.sampling import SamplingBatch
from eyas.engine.target_runner import TargetRunner
from eyas.errors import UserError
from eyas.taps import parse_taps
from eyas.targets.loading import load_target

TAPS = parse_taps("embed,layer:1,layer:2")
PROMPTS = [[5, 6, 7, 8, 9], [11], [300, 20, 20], [40, 41, 42, 43, 44, 45, 46, 47, 48]]
K = 3


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])  # the second has sliding windows
def target(request, tiny_targets):
    return load_target(str(tiny_targets(request.param)), device=torch.device("cpu"), dtype=torch.float32)


def random_draft(target, seed: int = 0, num_taps: int = 3, draft_vocab_size: int = 200) -> Eagle3Draft:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=num_taps, draft_vocab_size=draft_vocab_size))
        ids_V = torch.randperm(target.vocab_size)[:draft_vocab_size].sort().values
    draft.set_vocab_map(ids_V - torch.arange(draft_vocab_size), torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids_V, True))
    draft.use_embedding(target.embed)
    return draft.eval()


@pytest.fixture(scope="module")
def draft(target):
    return random_draft(target)


def greedy_tokens(target, prompt, count):
    with Engine(target) as engine:
        return list(engine.generate([prompt], SamplingParams(count, ignore_eos=True))[0].tokens)


def force(engine: Engine, answers: dict[int, list[int]], reject_at: int) -> None:
    """Let every round propose `reject_at` right tokens and then wrong ones. `answers` are known by their first prompt id.

    The draft still runs, so its cache sees what it would see.
    """
    real = engine._propose

    def propose(turn) -> Proposal:
        proposal = real(turn)
        tokens_BK = proposal.token_BK.clone()
        for row, request in enumerate(turn.requests):
            coming = answers[request.prompt[0]][len(request.tokens) :][: tokens_BK.shape[1]]
            tokens_BK[row, : len(coming)] = torch.tensor(coming)
            if reject_at < tokens_BK.shape[1]:
                tokens_BK[row, reject_at:] = (tokens_BK[row, reject_at:] + 1) % engine.target.vocab_size
        return Proposal(tokens_BK, None)

    engine._propose = propose


def slot_content(cache, slot: int) -> list[torch.Tensor]:
    length = int(cache.lengths_B[slot])
    return [held[slot, :, :length] for store in (cache._keys, cache._values) for held in store]


def assert_equal_content(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def assert_as_from_scratch(engine: Engine, draft, request, slot: int) -> None:
    """Both caches, the next logits, and what the draft proposes next, against a run that sees the text for the first time."""
    text = [*request.prompt, *request.tokens]
    fresh = TargetRunner(engine.target, TAPS, 1, 256, 2048)
    _, states_BTS = fresh.prefill([text[:-1]], None)
    expected_BTV, _ = fresh.verify(torch.tensor([text[-1:]]), None)
    fresh.close()
    assert int(engine.runner.cache.lengths_B[slot]) == len(text) - 1
    assert_equal_content(slot_content(engine.runner.cache, slot), slot_content(fresh.cache, 0))
    got_BTV, _ = engine.runner.verify(torch.tensor([text[-1:]]), [slot])  # nothing is kept of it
    torch.testing.assert_close(got_BTV, expected_BTV, rtol=1e-4, atol=1e-4)

    rebuilt = Drafter(draft, 1, 256, K, torch.device("cpu"))
    rebuilt.prefill([text[:-1]], states_BTS, torch.tensor(text[-1:]), None)
    greedy = SamplingBatch.of([SamplingParams(1)], torch.device("cpu"))
    expected = rebuilt.propose(K, greedy, None, None)
    got = engine.drafter.propose(K, greedy, None, [slot])
    assert int(engine.drafter.cache.lengths_B[slot]) == int(rebuilt.cache.lengths_B[0]) == len(text) - 1
    assert_equal_content(slot_content(engine.drafter.cache, slot), slot_content(rebuilt.cache, 0))
    assert got.token_BK.tolist() == expected.token_BK.tolist()


@pytest.mark.parametrize("reject_at", range(K + 1))
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_after_a_refusal_at_any_position_both_caches_are_as_from_scratch(target, draft, reject_at, rounds):
    prompt = PROMPTS[0]
    answer = greedy_tokens(target, prompt, 40)
    with Engine(target, draft, TAPS, num_draft_tokens=K) as engine:
        force(engine, {prompt[0]: answer}, reject_at)
        request = engine.add(prompt, SamplingParams(40, ignore_eos=True))
        for _ in range(1 + rounds):
            engine.step()
        assert [made.num_accepted for made in request.rounds] == [reject_at] * rounds
        assert request.tokens == answer[: 1 + rounds * (reject_at + 1)]
        assert_as_from_scratch(engine, draft, request, slot=0)


@pytest.mark.parametrize("reject_at", range(K + 1))
def test_the_same_in_a_batch_of_unequal_rows(target, draft, reject_at):
    answers = {prompt[0]: greedy_tokens(target, prompt, 40) for prompt in PROMPTS}
    with Engine(target, draft, TAPS, num_draft_tokens=K, max_batch=4) as engine:
        force(engine, answers, reject_at)
        requests = [engine.add(prompt, SamplingParams(40, ignore_eos=True)) for prompt in PROMPTS]
        for _ in range(4):
            engine.step()
        for slot, request in enumerate(requests):
            assert_as_from_scratch(engine, draft, request, slot)


def test_a_draft_that_keeps_its_own_rows_is_noticed(target, draft):
    """The oracle can fail: with the rollback of later steps left out, the draft's cache is another one."""
    prompt = PROMPTS[0]
    answer = greedy_tokens(target, prompt, 40)
    with Engine(target, draft, TAPS, num_draft_tokens=K) as engine:
        force(engine, {prompt[0]: answer}, reject_at=K)
        advance = engine.drafter.cache.advance
        engine.drafter.cache.advance = lambda count: advance(count) if not isinstance(count, int) or count > 0 else None
        request = engine.add(prompt, SamplingParams(40, ignore_eos=True))
        engine.step()
        engine.step()
        with pytest.raises(AssertionError):
            assert_as_from_scratch(engine, draft, request, slot=0)


def poison(engine: Engine) -> None:
    """Fill whatever no valid row owns. Masked cache rows meet a zero weight, so theirs must stay finite; the rest need not."""
    for cache in (engine.runner.cache, engine.drafter.cache):
        for store in (cache._keys, cache._values):
            for held in store:
                if held is not None:
                    for slot, length in enumerate(cache.lengths_B.tolist()):
                        held[slot, :, length:] = 3e4
    for slot, count in enumerate(engine.drafter._num_unread):
        engine.drafter._token_BT[slot, count:] = -1
        engine.drafter._hidden_BTH[slot, count:] = float("nan")


@pytest.mark.parametrize("params", [SamplingParams(17, ignore_eos=True), SamplingParams(17, temperature=1.0, seed=3, ignore_eos=True)])
def test_poisoned_padding_never_reaches_an_answer(target, draft, params):
    prompts = [*PROMPTS, [77, 78], [9], PROMPTS[3][:6]]  # seven on three slots: they come and go in waves

    def answers(spoil) -> list[tuple[int, ...]]:
        with Engine(target, draft, TAPS, num_draft_tokens=K, max_batch=3) as engine, torch.inference_mode():
            requests = [engine.add(prompt, params, index) for index, prompt in enumerate(prompts)]
            while engine.has_work:
                spoil(engine)
                engine.step()
            return [request.output().tokens for request in requests]

    assert answers(poison) == answers(lambda engine: None)


def test_logits_of_padding_may_be_anything(target, draft):
    """A row near its limit proposes less than its neighbours; what the target says behind its last proposal is not read."""
    with Engine(target, draft, TAPS, num_draft_tokens=K, max_batch=2) as engine:
        verify = engine.runner.verify

        def spoilt(ids_BT, slots):
            logits_BTV, states_BTS = verify(ids_BT, slots)
            for row, request in enumerate(request for request in engine._slots if request is not None):
                logits_BTV[row, min(K, request.num_remaining - 1) + 1 :] = float("nan")
            return logits_BTV, states_BTS

        engine.runner.verify = spoilt
        requests = [engine.add(PROMPTS[0], SamplingParams(count, ignore_eos=True)) for count in (3, 30)]
        while engine.has_work:
            engine.step()
    for request in requests:
        assert request.tokens == greedy_tokens(target, PROMPTS[0], len(request.tokens))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", ["draft", "target"])
def test_nan_is_an_error_and_leaves_nothing_behind(target, broken, temperature):
    """Left alone, a broken target and a broken draft agree on token 0 for ever and the acceptance looks splendid."""
    draft = random_draft(target, seed=5)
    owner = draft if broken == "draft" else target.norm
    weight = draft.lm_head.weight if broken == "draft" else owner.weight
    saved = weight.detach().clone()
    with Engine(target, draft, TAPS) as engine:
        try:
            with torch.no_grad():
                weight.view(-1)[7] = float("nan")
            with pytest.raises(UserError, match=f"the {broken} gave logits that are not numbers"):
                engine.generate([PROMPTS[0]], SamplingParams(8, temperature))
        finally:
            with torch.no_grad():
                weight.copy_(saved)
        assert not engine.has_work
        assert list(engine.generate([PROMPTS[0]], SamplingParams(8, ignore_eos=True))[0].tokens) == greedy_tokens(target, PROMPTS[0], 8)


def test_engines_may_share_a_target(target, draft):
    other = random_draft(target, seed=1)
    params = SamplingParams(12, ignore_eos=True)
    alone = greedy_tokens(target, PROMPTS[0], 12)
    with Engine(target, draft, TAPS) as first, Engine(target, other, TAPS) as second, Engine(target) as plain:
        for engine in (first, second, plain, first, second):
            assert list(engine.generate([PROMPTS[0]], params)[0].tokens) == alone
    assert not any(layer._forward_pre_hooks for layer in target.layers)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_is_answered_alike_alone_and_in_a_batch(target, draft, temperature):
    params = SamplingParams(15, temperature, 0.95, seed=4, ignore_eos=True)
    with Engine(target, draft, TAPS, max_batch=4) as engine:
        together = [output.tokens for output in engine.generate(PROMPTS, params)]
    with Engine(target, draft, TAPS) as engine:
        for index, prompt in enumerate(PROMPTS):
            request = engine.add(prompt, params, index)
            list(engine.run(request))
            assert request.output().tokens == together[index]


def test_seeds_matter_when_sampling_and_only_then(target, draft):
    def answer(**settings) -> tuple[int, ...]:
        with Engine(target, draft, TAPS) as engine:
            return engine.generate([PROMPTS[0]], SamplingParams(20, ignore_eos=True, **settings))[0].tokens

    assert answer(temperature=1.0, seed=1) == answer(temperature=1.0, seed=1) != answer(temperature=1.0, seed=2)
    assert answer(seed=1) == answer(seed=2)


def test_stream_gives_the_prefills_token_and_then_rounds(target, draft):
    params = SamplingParams(11, ignore_eos=True)
    with Engine(target, draft, TAPS) as engine:
        items = list(engine.stream(PROMPTS[0], params))
        [output] = engine.generate([PROMPTS[0]], params)
    assert [item.is_prefill for item in items] == [True] + [False] * (len(items) - 1)
    assert tuple(items[1:]) == output.rounds
    assert tuple(token for item in items for token in item.tokens) == output.tokens
    assert output.prefill_seconds > 0
    assert output.decode_seconds > 0


def test_a_stream_that_is_left_frees_its_slot(target, draft):
    with Engine(target, draft, TAPS) as engine:
        stream = engine.stream(PROMPTS[0], SamplingParams(30, ignore_eos=True))
        next(stream)
        stream.close()
        assert not engine.has_work
        assert list(engine.generate([PROMPTS[1]], SamplingParams(9, ignore_eos=True))[0].tokens) == greedy_tokens(target, PROMPTS[1], 9)


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 6])
def test_near_the_limit_less_is_proposed(target, draft, num_draft_tokens):
    with Engine(target, draft, TAPS, num_draft_tokens=num_draft_tokens) as engine:
        [output] = engine.generate([PROMPTS[0]], SamplingParams(9, ignore_eos=True))
    done = 1
    for made in output.rounds:
        assert made.num_proposed == min(num_draft_tokens, 9 - done - 1)
        done += made.num_emitted
    assert done == len(output.tokens) == 9
    assert output.rounds[-1].num_proposed == 0


def test_a_long_answer_makes_the_caches_grow(target, draft):
    prompt = [int(token) for token in torch.randint(0, 500, (240,), generator=torch.Generator().manual_seed(0))]
    with Engine(target, draft, TAPS) as engine:
        [output] = engine.generate([prompt], SamplingParams(60, ignore_eos=True))
        assert engine.runner.cache.capacity >= 300
    assert list(output.tokens) == greedy_tokens(target, prompt, 60)


@pytest.mark.parametrize(
    ("prompt", "match"),
    [([], "no tokens"), ([3, 512], "outside the target"), ([-1], "outside the target"), ([1] * 2040, "longer than")],
)
def test_prompts_that_cannot_be_answered_are_refused(target, prompt, match):
    with Engine(target) as engine:
        with pytest.raises(UserError, match=match):
            engine.generate([PROMPTS[0], prompt], SamplingParams(16))
        assert not engine.has_work


def test_parts_that_do_not_fit_are_refused(target, draft):
    with pytest.raises(UserError, match="another number of states"):
        Engine(target, draft, TAPS[:2])
    with pytest.raises(UserError, match="number of draft tokens"):
        Engine(target, draft, TAPS, num_draft_tokens=0)
    with pytest.raises(UserError, match="max_batch"):
        Engine(target, max_batch=0)
    with pytest.raises(UserError, match="beyond the last layer"):
        Engine(target, draft, (*TAPS[:2], parse_taps("layer:9")[0]))
