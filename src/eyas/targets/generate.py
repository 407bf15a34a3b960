"""Batched generation by the target alone: many prompts, a fixed number of slots, a finished row's slot reused at once.

This is how answers for training are made. It is plain decoding, sampled token by token from the target; nothing here
knows about drafts. Shapes: B slots, T prompt positions, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from eyas.errors import UserError
from eyas.loops import find_loop
from eyas.targets.cache import SlotCache
from eyas.targets.layout import require_prefill_only
from eyas.targets.target import Target

MIN_TEMPERATURE = 1e-6  # below it logits would overflow
_LOOP_CHECK_EVERY = 8  # tokens; the check reads the whole answer


@dataclass(frozen=True)
class BatchSettings:
    """`temperature` 0 is greedy. `stop_at_loop` ends an answer that repeats itself (reason "loop")."""

    max_new_tokens: int
    num_slots: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop_at_loop: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature == 0.0 or MIN_TEMPERATURE <= self.temperature < float("inf")):  # refuses NaN, too
            raise UserError("--temperature is out of range", got=self.temperature, allowed=f"0 (greedy), or {MIN_TEMPERATURE:g} and more")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError("--top-p is out of range", got=self.top_p, allowed="above 0, up to 1 (off)")


@dataclass(frozen=True)
class Finished:
    """One answer, without the stop token. `reason` is stop, length or loop."""

    key: str
    tokens: list[int]
    reason: str


@dataclass
class _Row:
    key: str
    prompt: list[int]
    rng: random.Random
    tokens: list[int] = field(default_factory=list)


def check_room(target: Target, settings: BatchSettings) -> int:
    """The longest prompt that leaves room for an answer. Raises UserError if the target's positions leave room for none."""
    positions = target.max_positions
    if settings.max_new_tokens >= positions:
        raise UserError(
            "--max-new-tokens leaves no room for a prompt",
            got=settings.max_new_tokens,
            allowed=f"1 to {positions - 1}: the target has {positions} positions",
        )
    return positions - settings.max_new_tokens


@torch.no_grad()
def generate_batch(target: Target, prompts: Iterable[tuple[str, list[int]]], settings: BatchSettings) -> Iterator[Finished]:
    """Answer every (key, token ids) in `prompts`; yields answers as they finish, in no particular order.

    A sampled answer depends on the seed and its key alone, up to rounding differences between batch compositions.
    """
    require_prefill_only(target.layout, "generation")
    waiting = iter(prompts)
    slots: list[_Row | None] = [None] * settings.num_slots
    cache: SlotCache | None = None
    exhausted = False
    while True:
        free = [index for index, row in enumerate(slots) if row is None]
        busy = len(slots) - len(free)
        if free and not exhausted and (len(free) >= min(8, len(slots)) or busy == 0):
            arrivals = []
            for key, prompt in waiting:
                arrivals.append(_Row(key, prompt, random.Random(f"{settings.seed}/{key}")))
                if len(arrivals) == len(free):
                    break
            exhausted = len(arrivals) < len(free)
            if arrivals:
                cache = _with_room(target, cache, slots, arrivals, settings)
                for index, row in zip(free, arrivals, strict=False):
                    slots[index] = row
                _prefill(target, cache, free[: len(arrivals)], arrivals, settings)
                yield from _collect(target, slots, settings)
                continue
        if busy == 0:
            return
        assert cache is not None
        _decode(target, cache, slots, settings)
        yield from _collect(target, slots, settings)


def _with_room(
    target: Target, cache: SlotCache | None, slots: list[_Row | None], arrivals: list[_Row], settings: BatchSettings
) -> SlotCache:
    """The cache, made again larger if a new prompt is longer than it was made for."""
    needed = max(len(row.prompt) for row in arrivals) + settings.max_new_tokens + 1
    if cache is None:
        return SlotCache(target.config, len(slots), max(needed, 512), target.device)
    if needed > cache.capacity:
        cache.grow(2 * needed)
    return cache


def _prefill(target: Target, cache: SlotCache, indices: list[int], rows: list[_Row], settings: BatchSettings) -> None:
    """Run the prompts of `rows` padded on the right; what the padding wrote lies behind the slots' lengths."""
    order = sorted(range(len(rows)), key=lambda n: len(rows[n].prompt))
    for start in range(0, len(order), 8):  # few at a time, of like length: little padding, little memory
        group = [(indices[n], rows[n]) for n in order[start : start + 8]]
        cache.reset([index for index, _ in group])
        longest = max(len(row.prompt) for _, row in group)
        ids_BT = torch.tensor([row.prompt + [0] * (longest - len(row.prompt)) for _, row in group], device=target.device)
        count_B = torch.tensor([len(row.prompt) for _, row in group], device=target.device)
        position_BT, mask = cache.begin(longest, [index for index, _ in group])
        final_BTH = target.backbone(
            input_ids=ids_BT, position_ids=position_BT, attention_mask=mask, cache=cache, use_cache=True
        ).last_hidden_state
        cache.advance(count_B)
        last_B1H = final_BTH[torch.arange(len(group), device=target.device), count_B - 1][:, None]
        _append([row for _, row in group], target.head(last_B1H)[:, 0], settings)


def _decode(target: Target, cache: SlotCache, slots: list[_Row | None], settings: BatchSettings) -> None:
    """One token for every busy slot; free slots run along on token 0 and are not advanced."""
    cache.reset([index for index, row in enumerate(slots) if row is None])
    ids_B1 = torch.tensor([[row.tokens[-1] if row else 0] for row in slots], device=target.device)
    busy_B = torch.tensor([row is not None for row in slots], device=target.device)
    position_BT, mask = cache.begin(1)
    final_BTH = target.backbone(
        input_ids=ids_B1, position_ids=position_BT, attention_mask=mask, cache=cache, use_cache=True
    ).last_hidden_state
    cache.advance(busy_B.long())
    busy = [row for row in slots if row is not None]
    _append(busy, target.head(final_BTH[busy_B])[:, 0], settings)


def _append(rows: list[_Row], logits_BV: torch.Tensor, settings: BatchSettings) -> None:
    if settings.temperature == 0.0:
        chosen = logits_BV.argmax(-1).tolist()
    else:
        uniform_B = torch.tensor([row.rng.random() for row in rows], device=logits_BV.device)
        chosen = _inverse_cdf(logits_BV.float() / settings.temperature, settings.top_p, uniform_B).tolist()
    for row, token in zip(rows, chosen, strict=True):
        row.tokens.append(token)


def _inverse_cdf(logits_BV: torch.Tensor, top_p: float, uniform_B: torch.Tensor) -> torch.Tensor:
    """Draw from the smallest set of tokens that holds `top_p` of the probability, one uniform number a row."""
    probs_BV, ids_BV = logits_BV.softmax(-1).topk(min(2048, logits_BV.shape[-1]), dim=-1)
    before_BV = probs_BV.cumsum(-1) - probs_BV
    kept_BV = torch.where(before_BV < top_p, probs_BV, 0.0)
    cdf_BV = kept_BV.cumsum(-1)
    rank_B = torch.searchsorted(cdf_BV, (uniform_B * cdf_BV[:, -1])[:, None], right=True).clamp_(max=cdf_BV.shape[-1] - 1)
    return ids_BV.gather(-1, rank_B)[:, 0]


def _collect(target: Target, slots: list[_Row | None], settings: BatchSettings) -> Iterator[Finished]:
    for index, row in enumerate(slots):
        if row is None:
            continue
        reason = _reason(row.tokens, target.stop_ids, settings)
        if reason is None:
            continue
        slots[index] = None
        yield Finished(row.key, row.tokens[:-1] if reason == "stop" else row.tokens, reason)


def _reason(tokens: list[int], stop_ids: tuple[int, ...], settings: BatchSettings) -> str | None:
    if tokens[-1] in stop_ids:
        return "stop"
    if len(tokens) >= settings.max_new_tokens:
        return "length"
    if settings.stop_at_loop and len(tokens) % _LOOP_CHECK_EVERY == 0 and find_loop(tokens) is not None:
        return "loop"
    return None
