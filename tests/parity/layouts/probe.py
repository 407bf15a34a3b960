"""What is looked at of a target, in one process or on every rank alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from eyas.capture.forward import capture_batch
from eyas.capture.parallel.share import Share
from eyas.draft.cache import DraftCache
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.taps import Tap
from eyas.targets.target import Target


def all_taps(target: Target) -> list[Tap]:
    return [Tap(boundary) for boundary in range(target.num_layers + 1)]


def capture(target: Target, batch: list[list[int]], packed: bool = False) -> dict[str, torch.Tensor]:
    """States of all texts one behind the other: [N, boundaries * H], the final state [N, H], the target's own tokens [N]."""
    found = capture_batch(target, batch, all_taps(target), packed=packed)
    return {name: torch.cat([getattr(one, name) for one in found]).contiguous() for name in ("states", "final", "top1")}


@contextlib.contextmanager
def selections(target: Target) -> Iterator[list[torch.Tensor]]:
    """The positions [B, T, k] that each layer's indexer picks, for targets that have one; parts of a share are put together."""
    seen: list[torch.Tensor] = []

    def hook(module: Any, args: Any, picked: torch.Tensor) -> None:
        seen.append(picked)

    handles = [layer.self_attn.indexer.register_forward_hook(hook) for layer in target.layers if hasattr(layer.self_attn, "indexer")]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def picked_sets(target: Target, text: list[int]) -> torch.Tensor:
    """[layers, T, T]: which earlier positions the indexer lets each position see."""
    with selections(target) as seen:
        capture_batch(target, [text], (), want_top1=False)
    if target.layout.cp > 1:
        share = Share.of(target.layout, len(text), target.device)
        seen = [share.whole(part) for part in seen]
    length = len(text)
    sets = [torch.zeros(length, max(length, int(part.max()) + 1), dtype=torch.bool).scatter_(1, part[0].long(), True) for part in seen]
    causal = torch.tril(torch.ones(length, length, dtype=torch.bool))
    return torch.stack([one[:, :length] & causal for one in sets]) if sets else torch.zeros(0)


def draft_for(target: Target) -> Eagle3Draft:
    """A random draft, the same everywhere, that shares the target's embedding and head."""
    torch.manual_seed(3)
    config = DraftConfig.from_target(target.config, num_taps=3, draft_vocab_size=target.vocab_size, lm_head_source="target")
    draft = Eagle3Draft(config).eval().requires_grad_(False)
    draft.set_vocab_map(torch.zeros(target.vocab_size, dtype=torch.long), torch.ones(target.vocab_size, dtype=torch.bool))
    draft.use_target(target)
    return draft


def decode(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers by rounds of the random draft."""
    taps = (Tap(0), Tap(1), Tap(2))
    with Engine(target, draft_for(target), taps, num_draft_tokens=3, max_batch=len(prompts)) as engine:
        return [list(output.tokens) for output in engine.generate(prompts, SamplingParams(max_new_tokens=8))]


def draft_tokens(target: Target, states_NnH: torch.Tensor, text: list[int]) -> torch.Tensor:
    """What the random draft proposes at every row of the first text, from captured states."""
    draft = draft_for(target)
    length = len(text) - 1
    cache = DraftCache(draft, 1, length, target.device)
    position_1T, mask = cache.begin(length)
    hidden_1TH = draft.fuse(states_NnH[None, :length, : 3 * target.hidden_size])
    fed_back = draft(torch.tensor([text[1:]]), hidden_1TH, position_1T, cache, mask)
    return draft.logits(fed_back)[0].argmax(-1)
