"""Reading named hidden states from a running target by hooks.

A boundary below the last is the INPUT of its layer, the last boundary is the last layer's output, and `final` is what the
norm gives. Hooks see exactly what the model computes, so no second forward and no private copy of a model's code is
needed. Every tap must fire exactly once between two readings: a layer that is skipped, run twice or swapped out for a
fused kernel would otherwise give a stale state without a word.

Shapes: B batch, T positions, H hidden size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from eyas.errors import UserError
from eyas.taps import Tap
from eyas.targets.target import Target


class TapReader:
    """Collects what the hooks of `read_taps` see; one reading a forward.

    Whoever keeps hooks on a target that others run too sets `listening` for its own forwards only.
    """

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = tuple(taps)
        self.listening = True
        self._seen: dict[Tap, list[torch.Tensor]] = {tap: [] for tap in self.taps}

    def record(self, tap: Tap, state_BTH: torch.Tensor) -> None:
        if self.listening:
            self._seen[tap].append(state_BTH)

    def states(self) -> list[torch.Tensor]:
        """The states [B, T, H] of the forward just run, in the order of the taps; the reader is empty afterwards.

        Raises:
            UserError: a tap fired no time or more than once since the last reading, or the shapes differ.
        """
        seen, self._seen = self._seen, {tap: [] for tap in self.taps}
        for tap, found in seen.items():
            if len(found) != 1:
                raise UserError(
                    f"tap {tap} fired {len(found)} times in one forward",
                    allowed="exactly once",
                    remedy="this target skips, repeats or replaces that layer; mend the family's row in eyas/targets/families.py",
                )
        states = [seen[tap][0] for tap in self.taps]
        shapes = {tuple(state.shape) for state in states}
        if len(shapes) > 1:
            raise UserError("the taps of one forward have unequal shapes", got=sorted(shapes))
        return states


@contextlib.contextmanager
def read_taps(target: Target, taps: Sequence[Tap]) -> Iterator[TapReader]:
    """Hook `taps` (all different) for the body's forwards; the hooks are gone afterwards, whatever happens.

    Raises UserError for a tap that the target has not.
    """
    assert len(set(taps)) == len(taps), "a tap is named twice"
    for tap in taps:
        tap.check(target.num_layers)
    if len(target.layers) != target.num_layers:
        raise UserError("the target's layers and its config disagree", got=len(target.layers), allowed=target.num_layers)
    reader = TapReader(taps)
    handles = [_hook(target, reader, tap) for tap in reader.taps]
    try:
        yield reader
    finally:
        for handle in handles:
            handle.remove()


def first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> torch.Tensor:
    """The hidden state given to a module, by position or by name."""
    value = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(value, torch.Tensor):
        raise UserError(
            f"{what} was called without hidden states",
            got=sorted(kwargs),
            remedy="this architecture needs a row of its own in eyas/targets/families.py",
        )
    return value


def _hook(target: Target, reader: TapReader, tap: Tap) -> RemovableHandle:
    def on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reader.record(tap, first_input(args, kwargs, f"layer {tap.boundary}"))

    def on_output(module: nn.Module, args: Any, output: Any) -> None:
        reader.record(tap, output[0] if isinstance(output, tuple) else output)

    if tap.boundary is None:
        return target.norm.register_forward_hook(on_output)
    if tap.boundary == target.num_layers:
        return target.layers[-1].register_forward_hook(on_output)
    return target.layers[tap.boundary].register_forward_pre_hook(on_input, with_kwargs=True)
