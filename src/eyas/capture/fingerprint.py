"""The trace: a numeric fingerprint of every state of a target, small enough to travel with every artefact.

A fixed text runs through the target; at every position each state is projected onto a few seeded random signs. Two states
are compared by the relative L2 difference of their sketches, as the median over positions: the first four are left out,
they carry the attention sink.

Shapes: P positions of the text, S states, K sketch size, H hidden size.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from eyas.capture.rounding import ROUNDINGS, Look
from eyas.errors import UserError
from eyas.files import JSON_ERRORS, atomic_path
from eyas.taps import Tap

FORMAT = 1
SKETCH_SIZE = 16
MIN_POSITIONS = 128
SINK_POSITIONS = 4


@dataclass(frozen=True)
class Trace:
    """See the module's docstring.

    token_ids: [P], as the target's tokenizer gave them.
    sketches: [S, P, K] float32, in the order of `state_names`: `boundary:0` to `boundary:N`, `mid:0` to `mid:N-1` (after
        the attention's branch was added to layer K's residual; absent where a family has no such point), `final`.
    top1: [P], the token that the target prefers after each position.
    noise: how far each state [S] moves when the weights are rounded, by the name of the rounding.
    dtype: of the weights that were sketched. compute_dtype: in which the sketching forward ran.
    look: the rounding that those weights visibly carry.
    """

    token_ids: torch.Tensor
    sketches: torch.Tensor
    top1: torch.Tensor
    noise: Mapping[str, torch.Tensor]
    state_names: tuple[str, ...]
    dtype: str
    compute_dtype: str
    look: Look
    num_layers: int
    hidden_size: int
    vocab_size: int

    def hash(self) -> str:
        """Over the fingerprint's bits; the noise profile is not part of it."""
        digest = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for tensor in (self.token_ids.int(), self.sketches, self.top1.int()):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        tensors = {"token_ids": self.token_ids.int(), "sketches": self.sketches.contiguous(), "top1": self.top1.int()}
        tensors |= {f"noise.{name}": profile for name, profile in self.noise.items()}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata={"eyas_trace": json.dumps(self._header(), sort_keys=True)})

    @staticmethod
    def load(path: Path) -> Trace:
        """Raises UserError for a file that is missing, damaged or not a trace."""
        if path.exists() and not path.is_file():
            raise UserError(f"the trace is no file: {path}")
        try:
            with safe_open(path, framework="pt") as opened:
                header = json.loads((opened.metadata() or {}).get("eyas_trace", "null"))
            tensors = load_file(path)
        except (OSError, SafetensorError, *JSON_ERRORS) as error:
            raise UserError(f"the trace is missing or damaged: {path}", got=str(error).splitlines()[0], remedy="copy it again") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise UserError(f"not a trace of a known format: {path}", allowed=f"format {FORMAT}")
        try:
            trace = Trace._of(header, tensors)
            trace._check()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"the trace lacks fields, or they do not fit: {path}",
                got=f"{type(error).__name__}: {error}"[:200],
                remedy="copy it again, or make it with this version",
            ) from error
        return trace

    @staticmethod
    def _of(header: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Trace:
        noise = {name.removeprefix("noise."): tensor for name, tensor in tensors.items() if name.startswith("noise.")}
        names, look = tuple(header.pop("state_names")), Look(**header.pop("look"))
        del header["format"]
        for name in ("token_ids", "top1"):
            if tensors[name].dtype != torch.int32:
                raise ValueError(f"{name} are not torch.int32 but {tensors[name].dtype}")
        return Trace(tensors["token_ids"].long(), tensors["sketches"], tensors["top1"].long(), noise, names, look=look, **header)

    def _check(self) -> None:
        """Raises ValueError for fields that no recording gives; what reads a trace relies on their shapes."""
        states, positions = len(self.state_names), len(self.token_ids)
        shapes = {
            "token_ids": (self.token_ids, (positions,)),
            "sketches": (self.sketches, (states, positions, SKETCH_SIZE)),
            "top1": (self.top1, (positions,)),
            **{f"noise.{name}": (profile, (states,)) for name, profile in self.noise.items()},
        }
        for name, (tensor, shape) in shapes.items():
            if tuple(tensor.shape) != shape or not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} is not finite, or of shape {list(tensor.shape)} where {list(shape)} is wanted")
        if self.sketches.dtype != torch.float32 or any(profile.dtype != torch.float32 for profile in self.noise.values()):
            raise ValueError(f"sketches or noise are not torch.float32 but {self.sketches.dtype}")
        for name, size in (("num_layers", self.num_layers), ("hidden_size", self.hidden_size), ("vocab_size", self.vocab_size)):
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 2**31:
                raise ValueError(f"{name} is {str(size)[:40]}")
        layers = range(min(self.num_layers, states))
        boundaries = {"boundary:0", *(f"boundary:{layer + 1}" for layer in layers)}
        names = set(self.state_names)
        if not boundaries <= names <= {*boundaries, *(f"mid:{layer}" for layer in layers), "final"} or len(names) < states:
            raise ValueError(f"state_names are not those of a target of {self.num_layers} layers")
        if positions <= SINK_POSITIONS:
            raise ValueError(f"only {positions} positions")
        if not 0 <= int(self.token_ids.min()) <= int(self.token_ids.max()) < self.vocab_size:
            raise ValueError(f"token ids lie outside of a vocabulary of {self.vocab_size}")
        casts = ("float32", "float16", "bfloat16")
        if {self.dtype, self.compute_dtype} - {*casts} or {self.look.coarsest, self.look.finest} - {*casts, *ROUNDINGS}:
            raise ValueError(f"dtypes are {self.dtype}, {self.compute_dtype}, {self.look}"[:160])

    def distances(self, sketches_SPK: torch.Tensor) -> torch.Tensor:
        """Distance [S] of another target's sketches, state by state."""
        return distance(sketches_SPK, self.sketches)

    def locate(self, state_PH: torch.Tensor) -> Location:
        """Which of the target's states `state_PH` is: the tokens of this trace, run anywhere, captured anywhere."""
        found_S = distance(sketch(state_PH)[None], self.sketches)
        order = found_S.argsort().tolist()
        return Location(self.state_names[order[0]], float(found_S[order[0]]), self.state_names[order[1]], float(found_S[order[1]]))

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "state_names": list(self.state_names),
            "dtype": self.dtype,
            "compute_dtype": self.compute_dtype,
            "look": asdict(self.look),
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
        }


@dataclass(frozen=True)
class Location:
    """The nearest state and the runner-up; `ratio` near 0 is a certain verdict, near 1 none at all."""

    nearest: str
    distance: float
    runner_up: str
    runner_up_distance: float

    @property
    def ratio(self) -> float:
        return self.distance / max(self.runner_up_distance, 1e-12)


def sketch(state_PH: torch.Tensor) -> torch.Tensor:
    """Project [P, H] to [P, K] in fp32. The signs depend on H alone."""
    return sketch_columns(state_PH, 0, state_PH.shape[-1])


def sketch_columns(columns_PW: torch.Tensor, start: int, hidden_size: int) -> torch.Tensor:
    """What columns [start, start + W) of a state of `hidden_size` add to its sketch, [P, K]; the blocks' sketches sum to the whole."""
    signs_WK = _signs(hidden_size)[start : start + columns_PW.shape[-1]].to(columns_PW.device)
    return (columns_PW.float() @ signs_WK).cpu() / SKETCH_SIZE**0.5


def distance(sketches_SPK: torch.Tensor, reference_SPK: torch.Tensor) -> torch.Tensor:
    """Median over positions of the relative L2 difference, [S]."""
    difference_SP = (sketches_SPK - reference_SPK).norm(dim=-1) / reference_SPK.norm(dim=-1).clamp_min(1e-12)
    return difference_SP[:, SINK_POSITIONS:].median(dim=-1).values


def state_name(tap: Tap) -> str:
    """The name under which a tap's state stands in a trace."""
    return "final" if tap.is_final else f"boundary:{tap.boundary}"


@functools.cache
def _signs(hidden_size: int) -> torch.Tensor:
    """Not to be changed. [H, K] of +1 and -1 from Python's own generator, whose bits never change between versions or machines."""
    count = hidden_size * SKETCH_SIZE
    bits = random.Random(f"eyas trace {hidden_size}").getrandbits(count)
    values = [1.0 if digit == "1" else -1.0 for digit in f"{bits:0{count}b}"]
    return torch.tensor(values).view(hidden_size, SKETCH_SIZE)
