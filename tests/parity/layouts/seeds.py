"""Captures gone wrong the way they do in real servers, made by running the real layout and reading it in the wrong place.

Each seed gives what one rank would have written: states [rows, slots, width] over one text, the slots being TAPS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from eyas.capture.forward import capture_batch, run_backbone
from eyas.capture.parallel.prefill import run_share
from eyas.capture.parallel.share import Share
from eyas.capture.taps import read_taps
from eyas.taps import Tap
from eyas.targets.target import Target

TAPS = (Tap(0), Tap(2), Tap(3))  # embed, layer:1, layer:2
LENGTH = 150  # of the text: no number of ranks divides it into equal blocks
PROMPT = 70  # tokens of the text that are prefilled where the rest is decoded
_BLOCK = 4  # tokens that a verifying step runs at once

Seed = Callable[[Target, list[int]], torch.Tensor]


def whole(target: Target, ids: list[int]) -> torch.Tensor:
    """[T, slots, H], as it should be."""
    return capture_batch(target, [ids], TAPS, want_top1=False)[0].states.unflatten(-1, (len(TAPS), -1))


# -- tensor parallelism ----------------------------------------------------------------------------------------


def last_branch_not_reduced(target: Target, ids: list[int]) -> torch.Tensor:
    """The residual, and this rank's share of what each tapped layer's MLP adds."""
    states = whole(target, ids)
    for slot, tap in list(enumerate(TAPS))[1:]:
        assert tap.boundary is not None
        with not_reduced(target.layers[tap.boundary - 1].mlp):
            states[:, slot] = whole(target, ids)[:, slot]
    return states


@contextlib.contextmanager
def not_reduced(module: nn.Module) -> Iterator[None]:
    """All-reduces within the module do nothing."""
    real = dist.all_reduce

    def leave_out(*args: object) -> None:
        dist.all_reduce = lambda tensor, *rest, **named: None

    def put_back(*args: object) -> None:
        dist.all_reduce = real

    handles = [module.register_forward_pre_hook(leave_out), module.register_forward_hook(put_back, always_call=True)]
    try:
        yield
    finally:
        dist.all_reduce = real
        for handle in handles:
            handle.remove()


def embedding_not_reduced(target: Target, ids: list[int]) -> torch.Tensor:
    """This rank's rows of the table, and zeros for the tokens of other ranks."""
    states = whole(target, ids)
    weight = target.embed.weight
    assert isinstance(weight, DTensor)
    first = (target.layout.rank % target.layout.tp) * len(weight.to_local())
    mine = torch.tensor([first <= token < first + len(weight.to_local()) for token in ids])
    states[:, 0] *= mine[:, None]
    return states


def rows_scattered(target: Target, ids: list[int]) -> torch.Tensor:
    """What sequence parallelism leaves on a rank between two all-gathers."""
    return whole(target, ids).tensor_split(target.layout.tp)[target.layout.rank % target.layout.tp].contiguous()


def columns_scattered(target: Target, ids: list[int]) -> torch.Tensor:
    return whole(target, ids).chunk(target.layout.tp, dim=-1)[target.layout.rank % target.layout.tp].contiguous()


# -- context parallelism ---------------------------------------------------------------------------------------


def _parts(target: Target, ids: list[int]) -> tuple[torch.Tensor, Share]:
    """This rank's rows [S, slots, H], padding included."""
    share = Share.of(target.layout, len(ids), target.device)
    with read_taps(target, TAPS) as reader, torch.no_grad():
        run_backbone(target, [ids])
        return torch.stack([state[0] for state in reader.states()], dim=1), share


def not_gathered(target: Target, ids: list[int]) -> torch.Tensor:
    return _parts(target, ids)[0]


def not_reordered(target: Target, ids: list[int]) -> torch.Tensor:
    """All rows are there, one rank's after the other's."""
    part, share = _parts(target, ids)
    return share.gather(part, 0)[share.back_P.argsort()]


def split_before_embedding(target: Target, ids: list[int]) -> torch.Tensor:
    """Later states are gathered; the embedding's were this rank's already, at the head of a buffer for all."""
    states, part = whole(target, ids), _parts(target, ids)[0][: len(ids)]
    states[:, 0] = 0
    states[: len(part), 0] = part[:, 0]
    return states


def active_in_decode(target: Target, ids: list[int]) -> torch.Tensor:
    """The prompt is right. Each later step gathers the keys of its own tokens, where a cache would show the whole context."""
    steps = [whole(target, ids[:PROMPT])]
    for start in range(PROMPT, len(ids), _BLOCK):
        step = ids[start : start + _BLOCK]
        position_1T = torch.arange(start, start + len(step))[None]
        with read_taps(target, TAPS) as reader, torch.no_grad():
            share = run_share(target, torch.tensor([step]), position_1T, None)
            steps.append(torch.stack([share.whole(state)[0] for state in reader.states()], dim=1))
    return torch.cat(steps)


TENSOR_PARALLEL: tuple[Seed, ...] = (last_branch_not_reduced, embedding_not_reduced, rows_scattered, columns_scattered)
CONTEXT_PARALLEL: tuple[Seed, ...] = (not_gathered, not_reordered, split_before_embedding, active_in_decode)
