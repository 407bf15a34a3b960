"""Batched generation and its slot cache, against transformers' own `generate` one prompt at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.errors import UserError
from eyas.targets.cache import SlotCache
from eyas.targets.cpu_linear import PackedLinear
from eyas.targets.generate import BatchSettings, check_room, generate_batch
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny_text import tiny_chats

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    return load_target(str(folder), device=CPU, dtype=dtype)


def prompts(target: Target, count: int) -> list[tuple[str, list[int]]]:
    made = []
    for number, chat in enumerate(tiny_chats(count, seed=11)):
        question = [message for message in chat if message["role"] != "assistant"][: 1 + number % 2]
        text = target.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
        made.append((str(number), target.tokenizer.encode(text, add_special_tokens=False)))
    return made


def alone(target: Target, prompt: list[int], max_new_tokens: int) -> list[int]:
    output = target.model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=max_new_tokens,
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer[:-1] if answer[-1] in target.stop_ids else answer


@pytest.mark.parametrize(
    ("family", "trained"), [("llama", True), ("deepseek_v3", False), ("gemma3_text", False), ("gemma2", False), ("granite", False)]
)
def test_answers_equal_generate_whatever_the_slots(tiny_targets, family: str, trained: bool) -> None:
    """More prompts than slots, of unequal lengths: slots are used again, and sliding windows (32 here) do act."""
    target = load(tiny_targets(family, trained=trained))
    asked = prompts(target, 10)
    answers = {answer.key: answer for answer in generate_batch(target, asked, BatchSettings(max_new_tokens=48, num_slots=3))}
    assert set(answers) == {key for key, _ in asked}
    for key, prompt in asked:
        expected = alone(target, prompt, 48)
        assert answers[key].tokens == expected
        assert answers[key].reason == ("length" if len(expected) == 48 else "stop")


def test_a_trained_target_stops_by_itself(tiny_targets) -> None:
    target = load(tiny_targets("llama", trained=True))
    answers = list(generate_batch(target, prompts(target, 12), BatchSettings(max_new_tokens=200, num_slots=4)))
    assert sum(answer.reason == "stop" for answer in answers) > 8
    assert not any(token in target.stop_ids for answer in answers for token in answer.tokens)


def test_sampled_answers_depend_on_seed_and_key_only(tiny_targets) -> None:
    target = load(tiny_targets("llama", trained=True))
    asked = prompts(target, 8)

    def draw(order: list[tuple[str, list[int]]], slots: int, seed: int) -> dict[str, list[int]]:
        settings = BatchSettings(max_new_tokens=24, num_slots=slots, temperature=1.0, top_p=0.95, seed=seed)
        return {answer.key: answer.tokens for answer in generate_batch(target, order, settings)}

    first = draw(asked, 8, seed=1)
    assert draw(asked[::-1], 3, seed=1) == first
    assert draw(asked, 8, seed=2) != first


def test_loops_end_an_answer_only_when_asked(tiny_targets) -> None:
    target = load(tiny_targets("llama"))  # random weights soon repeat themselves
    asked = prompts(target, 4)
    free = list(generate_batch(target, asked, BatchSettings(max_new_tokens=160, num_slots=4)))
    cut = list(generate_batch(target, asked, BatchSettings(max_new_tokens=160, num_slots=4, stop_at_loop=True)))
    assert "loop" not in {answer.reason for answer in free}
    assert "loop" in {answer.reason for answer in cut}


def test_rolling_back_is_forgetting(tiny_targets) -> None:
    """Six tokens written, two kept, others written: logits equal those of a fresh cache that never saw the four."""
    target = load(tiny_targets("llama"))
    ids = torch.randint(4, 500, (2, 20))

    def run(cache: SlotCache, chunk_BT: torch.Tensor, keep: int) -> torch.Tensor:
        position, mask = cache.begin(chunk_BT.shape[1])
        with torch.no_grad():
            logits = target.model(chunk_BT, position_ids=position, attention_mask=mask, cache=cache, use_cache=True).logits
        cache.advance(keep)
        return logits

    straight, winding = (SlotCache(target.model.config, 2, 32, CPU) for _ in range(2))
    run(straight, ids[:, :8], 8)
    run(winding, ids[:, :6], 6)
    run(winding, ids[:, 10:16], 0)
    run(winding, torch.cat([ids[:, 6:8], ids[:, 12:16]], dim=1), 2)
    torch.testing.assert_close(run(winding, ids[:, 8:12], 4), run(straight, ids[:, 8:12], 4))


def test_poison_behind_a_slot_s_length_is_never_read(tiny_targets) -> None:
    target = load(tiny_targets("llama"))
    ids = torch.randint(4, 500, (2, 8))
    cache = SlotCache(target.model.config, 2, 16, CPU)
    cache.begin(8)
    position, mask = cache.begin(8)
    with torch.no_grad():
        target.model(ids, position_ids=position, attention_mask=mask, cache=cache, use_cache=True)
        cache.advance(torch.tensor([8, 5]))
        for store in (cache._keys, cache._values):
            for held in store:
                held[1, :, 5:] = 1e4
        position, mask = cache.begin(1)
        with_poison = target.model(ids[:, :1], position_ids=position, attention_mask=mask, cache=cache, use_cache=True).logits[1]
        alone = target.model(torch.cat([ids[1:, :5], ids[1:, :1]], dim=1)).logits[0, -1:]
    torch.testing.assert_close(with_poison, alone)


def test_too_long_a_sequence_is_refused(tiny_targets) -> None:
    cache = SlotCache(load(tiny_targets("llama")).model.config, 1, 8, CPU)
    with pytest.raises(UserError, match="longer than the cache"):
        cache.begin(9)


def test_states_that_cannot_be_rolled_back_are_refused() -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model("qwen3_next", num_hidden_layers=4, hidden_size=64)
    with pytest.raises(UserError, match="cannot be rolled back"):
        SlotCache(config, 1, 8, CPU)


def test_packed_linears_give_the_same_values(tiny_targets) -> None:
    """bf16 through oneDNN and through torch round alike up to the order of summation."""
    folder = tiny_targets("llama")
    packed = load_target(str(folder), device=CPU, dtype=torch.bfloat16, fast=True)
    plain = load_target(str(folder), device=CPU, dtype=torch.bfloat16, fast=False)
    assert any(isinstance(module, PackedLinear) for module in packed.model.modules())
    assert not any(isinstance(module, PackedLinear) for module in plain.model.modules())
    assert packed.lm_head.weight.shape == plain.lm_head.weight.shape
    ids = torch.randint(4, 500, (2, 9))
    with torch.no_grad():
        a, b = packed.model(ids).logits.float(), plain.model(ids).logits.float()
    assert float((a - b).norm() / b.norm()) < 0.03


@pytest.mark.parametrize("values", [{"temperature": float("nan")}, {"temperature": 1e-40}, {"top_p": float("nan")}, {"top_p": 0.0}])
def test_settings_that_no_token_can_be_drawn_with_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(UserError, match="out of range"):
        BatchSettings(max_new_tokens=4, **values)  # type: ignore[arg-type]


def test_an_answer_needs_room_for_its_prompt(tiny_targets) -> None:
    target = load(tiny_targets("llama"))
    assert check_room(target, BatchSettings(max_new_tokens=48)) == 2000
    with pytest.raises(UserError, match="no room"):
        check_room(target, BatchSettings(max_new_tokens=2048))
