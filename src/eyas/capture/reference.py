"""What captured states are compared with: sketches of every state of the target, over the token ids that were captured.

They come from a trace (then the ids must be the trace's own) or from the target itself (then any ids will do, and known too are
states that went through one more norm, blocks of columns, and what each rank adds under tensor parallelism).

Shapes: P positions of all sequences together, S states, K sketch size, H hidden size, C column blocks (1: whole states).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from eyas.capture.fingerprint import MIN_POSITIONS, SINK_POSITIONS, SKETCH_SIZE, Trace, sketch, sketch_columns
from eyas.capture.shares import Shares, reading_shares
from eyas.capture.trace import named_states
from eyas.errors import UserError
from eyas.taps import Tap
from eyas.targets.target import Target

# Rounding that a captured state may carry where nothing was measured: 8-bit weights, or states stored in 8 bits.
_ROUNDED = 0.05
_MEASURED = ("bfloat16", "float16", "int8", "fp8")
_INPUT_NORMS = ("input_layernorm", "ln_1")


@dataclass(frozen=True)
class Reference:
    """sketches [C, S, P, K]. normed: states after one more norm, by what was done, each [S', P, K] with their names.

    allowed [S]: how far rounding may move a state. position [P]: within its own sequence. shares: see `shares`, states by number.
    """

    state_names: tuple[str, ...]
    sketches: torch.Tensor
    normed: dict[str, tuple[tuple[str, ...], torch.Tensor]]
    allowed: torch.Tensor
    lengths: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    shares: Mapping[tuple[int, int], Mapping[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def position_P(self) -> torch.Tensor:
        return torch.cat([torch.arange(length) for length in self.lengths])

    @property
    def counts_P(self) -> torch.Tensor:
        """Which positions count: the first of a sequence carry the attention sink."""
        return self.position_P >= SINK_POSITIONS

    def index(self, name: str) -> int | None:
        return self.state_names.index(name) if name in self.state_names else None

    def branches(self) -> list[tuple[int, int]]:
        """(before, after) of every branch of a layer: states between which only one sum of attention or MLP lies."""
        chain = [name for name in self.state_names if name != "final"]
        chain.sort(key=lambda name: (int(name.split(":")[1]), name.startswith("mid")))  # boundary:K, mid:K, boundary:K+1
        places = [self.state_names.index(name) for name in chain]
        return list(pairwise(places))


def state_tap(name: str) -> str:
    """A trace's name of a state as users write it: `boundary:3` is `layer:2`."""
    return str(Tap.parse(name)) if name.startswith("boundary:") else name


def reference_of_trace(trace: Trace, token_ids: Sequence[Sequence[int]], where: str = "the capture") -> Reference:
    """Raises UserError if what was captured, by the file `where`, are not the trace's tokens, or too few of them."""
    recorded = trace.token_ids.tolist()
    ids = list(token_ids[0])[: len(recorded)] if len(token_ids) == 1 else []
    if len(ids) < MIN_POSITIONS or ids != recorded[: len(ids)]:
        raise UserError(
            f"{where}: the states were captured for other tokens than the trace's",
            got=f"{len(token_ids)} sequences, the first with {len(token_ids[0]) if token_ids else 0} tokens",
            allowed=f"one sequence that begins with the trace's {len(recorded)} ids (at least {MIN_POSITIONS} of them)",
            remedy="capture the ids that eyas trace record --prompt-out writes, or give --target to compare any tokens",
        )
    allowed_S = torch.full((len(trace.state_names),), _ROUNDED)
    for name in _MEASURED:
        if name in trace.noise:
            allowed_S = allowed_S.maximum(3.0 * trace.noise[name])
    sketches_SPK = trace.sketches[:, : len(ids)]
    return Reference(trace.state_names, sketches_SPK[None], {}, allowed_S, (len(ids),), trace.hidden_size, trace.vocab_size)


@torch.no_grad()
def reference_of_target(target: Target, token_ids: Sequence[Sequence[int]], width: int, where: str = "the capture") -> Reference:
    """`width`: of the captured states; where it is a part of the hidden size, every block of so many columns is sketched.

    Raises UserError for ids, of the file `where`, that the target does not have.
    """
    for ids in token_ids:
        if not 0 <= min(ids) <= max(ids) < target.vocab_size:
            raise UserError(f"{where}: the token ids are not the target's", got=max(ids), allowed=f"0 to {target.vocab_size - 1}")
    hidden = target.hidden_size
    starts = range(0, hidden, width) if width < hidden and hidden % width == 0 else range(1)
    names: tuple[str, ...] = ()
    parts: list[torch.Tensor] = []
    normed: dict[str, list[tuple[tuple[str, ...], torch.Tensor]]] = {}
    shares: list[Shares] = []
    for ids in token_ids:
        with reading_shares(target) as reader:
            states = named_states(target, list(ids))
        shares.append(reader.shares(states))
        names = tuple(states)
        parts.append(torch.stack([_sketch_block(states, start, min(width, hidden), hidden) for start in starts]))
        for what, sketched in _normed(target, states).items():
            normed.setdefault(what, []).append(sketched)
    return Reference(
        state_names=names,
        sketches=torch.cat(parts, dim=2),
        normed={what: (found[0][0], torch.cat([part for _, part in found], dim=1)) for what, found in normed.items()},
        allowed=torch.full((len(names),), _ROUNDED),
        lengths=tuple(map(len, token_ids)),
        hidden_size=hidden,
        vocab_size=target.vocab_size,
        shares=_joined(shares, names),
    )


def _joined(parts: Sequence[Shares], names: tuple[str, ...]) -> dict[tuple[int, int], dict[int, torch.Tensor]]:
    """The shares of all sequences together, of the branches that are known in each of them."""
    known = [branch for branch in parts[0] if all(branch in part for part in parts)]
    return {
        (names.index(before), names.index(after)): {
            ranks: torch.cat([part[before, after][ranks] for part in parts], dim=1) for ranks in parts[0][before, after]
        }
        for before, after in known
    }


def _sketch_block(states: dict[str, torch.Tensor], start: int, width: int, hidden: int) -> torch.Tensor:
    return torch.stack([sketch_columns(state_PH[:, start : start + width], start, hidden) for state_PH in states.values()])


def _normed(target: Target, states: dict[str, torch.Tensor]) -> dict[str, tuple[tuple[str, ...], torch.Tensor]]:
    """Boundaries as they look after the final norm, or after the norm with which the next layer begins."""
    boundaries = {name: state for name, state in states.items() if name.startswith("boundary:")}
    below = dict(list(boundaries.items())[:-1])  # the last one after the final norm is `final`
    found = {"the final norm": _apply({name: (target.norm, state) for name, state in below.items()})}
    norms = [next((getattr(layer, norm) for norm in _INPUT_NORMS if hasattr(layer, norm)), None) for layer in target.layers]
    pairs = {name: (norm, state) for (name, state), norm in zip(below.items(), norms, strict=True) if norm is not None}
    if pairs:
        found["the next layer's input norm"] = _apply(pairs)
    return found


def _apply(pairs: dict[str, tuple[nn.Module, torch.Tensor]]) -> tuple[tuple[str, ...], torch.Tensor]:
    sketches = [sketch(norm(state_PH.to(next(norm.parameters()).dtype))) for norm, state_PH in pairs.values()]
    return tuple(pairs), torch.stack(sketches) if sketches else torch.zeros(0, 0, SKETCH_SIZE)
