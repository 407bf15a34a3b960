"""Recording a target's trace, and telling from it whether another target is the same model.

Sketches are made in fp32 from the weights as loaded (see `rounded`), so that they depend on the weights and on nothing
else: not on the dtype, the kernels or the batch with which states are captured. Another dtype or a quantised copy then
differs by its rounding, and how far a rounding moves each state is measured when the trace is recorded. Whatever differs
by more than the rounding that its own weights show is another model.

Shapes: P positions, S states, K sketch size, H hidden size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eyas.capture.fingerprint import MIN_POSITIONS, Location, Trace, distance, sketch, state_name
from eyas.capture.forward import run_backbone
from eyas.capture.rounding import ROUNDINGS, Rounding, look_at, rounded
from eyas.capture.taps import first_input, read_taps
from eyas.errors import UserError, WiringError
from eyas.taps import Tap
from eyas.targets.devices import DTYPES, dtype_name
from eyas.targets.target import Target

__all__ = ["IdentityReport", "Location", "Trace", "check_identity", "compare_traces", "record_trace", "state_name"]

_NUM_POSITIONS = 160
_LARGEST_FP32_LAYER = 8 << 30  # bytes; beyond it the sketching forward runs in the dtype of the weights
# How much further than measured a copy may lie: quantisers differ in grouping and rounding, a cast does not.
_FACTORS = {"float32": 1.5, "float16": 1.5, "bfloat16": 1.5, "int8": 3.0, "fp8": 3.0, "int4": 3.0}
SAME_WEIGHTS = 1e-4  # beyond what kernels and summation order do in fp32
_FLOOR = {"float32": SAME_WEIGHTS, "float16": 4e-3, "bfloat16": 3e-2}  # of the kernels, by compute dtype

_TEXT = (
    "The harbour wakes before the town does. At half past four the ice machine starts to rattle, and a man named Osric unlocks "
    "the fish hall with a key as long as his hand. He counts 48 crates, writes the number on a slate, and rubs it out again "
    'when the boats report another 12. "Sixty," he says to nobody, "and not one buyer awake."\n\n'
    "Temperature readings, Tuesday: 3.5, 4.1, 2.9 degrees. If the mean is above 4, call the engineer; otherwise do nothing.\n\n"
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return total / len(values)\n\n"
    "By noon the square smells of bread and diesel. Children run between the stalls, a dog sleeps under the scales, and the "
    "price of mackerel has fallen twice. Nobody remembers who painted the blue line along the quay, but every spring someone "
    "paints it again, a little straighter than before. The bank closes at three; the library, which has better chairs, at six."
)


@dataclass(frozen=True)
class IdentityReport:
    """How a target compares with a trace. `worst` is the state nearest to, or furthest beyond, what is `allowed` there."""

    same: bool
    weights: str
    worst: str
    distance: float
    allowed: float
    median_distance: float
    top1_agreement: float

    def text(self) -> str:
        return (
            f"distance {self.distance:.2e} at {self.worst} (allowed {self.allowed:.2e}), "
            f"median over the states {self.median_distance:.2e}, "
            f"same next token on {100 * self.top1_agreement:.1f} % of the positions; the weights show {self.weights}"
        )


def record_trace(target: Target, *, noise: bool = True) -> Trace:
    """Run the text through the target, and through rounded copies of its weights.

    Args:
        noise: also measure the roundings; without them only exact copies can be recognised later.
    """
    ids = _token_ids(target)
    compute = _compute_dtype(target)
    names, sketches_SPK = _sketches(target, ids, lambda weight: weight.to(compute))
    profiles = {}
    for name, change in ROUNDINGS.items() if noise else ():
        _, moved_SPK = _sketches(target, ids, _then(change, target.dtype, compute))
        profiles[name] = distance(moved_SPK, sketches_SPK)
    return Trace(
        token_ids=torch.tensor(ids),
        sketches=sketches_SPK,
        top1=_top1(target, ids),
        noise=profiles,
        state_names=names,
        dtype=dtype_name(target.dtype),
        compute_dtype=dtype_name(compute),
        look=look_at(target),
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
    )


def check_identity(target: Target, trace: Trace, owner: str) -> IdentityReport:
    """Is `target` the model that `trace` was recorded on? `owner` names the artefact that brought the trace.

    A copy in another dtype, or a quantised one that is recognisable as such, passes.

    Raises:
        WiringError: it is another model, with the numbers.
    """
    report = compare_target(target, trace)
    if report.same:
        return report
    close = report.median_distance < 0.5 and report.top1_agreement > 0.5
    raise WiringError(
        f"{target.name} is not the target that {owner} was made on",
        got=report.text(),
        allowed=f"what rounding to {report.weights} explains",
        remedy=(
            "it is near: a fine-tuned or otherwise changed copy, or like weights run by another architecture; capture and train on it, "
            "or use the original"
            if close
            else "use the target that it was made on"
        ),
    )


def compare_target(target: Target, trace: Trace) -> IdentityReport:
    """`check_identity` without the error. Raises WiringError only where nothing can be compared."""
    shape = (target.num_layers, target.hidden_size, target.vocab_size)
    if shape != (trace.num_layers, trace.hidden_size, trace.vocab_size):
        raise WiringError(
            f"{target.name} is not the target that the trace was recorded on",
            got=f"{shape[0]} layers, hidden size {shape[1]}, vocabulary {shape[2]}",
            allowed=f"{trace.num_layers} layers, hidden size {trace.hidden_size}, vocabulary {trace.vocab_size}",
            remedy="use the target that it was made on",
        )
    ids = trace.token_ids.tolist()
    recorded, compute = DTYPES[trace.dtype], DTYPES[trace.compute_dtype]
    # Weights wider than those recorded are rounded to the same dtype first: then an exact copy is exact again.
    names, sketches_SPK = _sketches(target, ids, lambda weight: weight.to(recorded).to(compute))
    if names != trace.state_names:
        raise WiringError(
            f"{target.name} is of another architecture than the target that the trace was recorded on",
            got=f"{len(names)} named states",
            allowed=f"{len(trace.state_names)}",
            remedy="use the target that it was made on",
        )
    agreement = float((_top1(target, ids) == trace.top1).float().mean())
    return _judge(trace, trace.distances(sketches_SPK), look_at(target).may_add_to(trace.look), agreement)


def compare_traces(left: Trace, right: Trace) -> IdentityReport | None:
    """The same verdict from two recorded traces; None if they were recorded on texts of different ids."""
    if left.state_names != right.state_names or not torch.equal(left.token_ids, right.token_ids) or left.hidden_size != right.hidden_size:
        return None
    agreement = float((left.top1 == right.top1).float().mean())
    found = [
        _judge(one, one.distances(other.sketches), other.look.may_add_to(one.look), agreement)
        for one, other in ((left, right), (right, left))
    ]
    found.sort(key=lambda report: report.distance / report.allowed)
    # Where one looks coarser, it may be the rounded copy of the other: the kinder verdict. Looks that are equal excuse nothing.
    return found[-1] if left.look.coarsest == right.look.coarsest else found[0]


def _judge(trace: Trace, distance_S: torch.Tensor, weights: str, agreement: float) -> IdentityReport:
    allowed_S = torch.full_like(distance_S, _FLOOR[trace.compute_dtype])
    for name in _explained_by(weights):
        if name in trace.noise:
            allowed_S = allowed_S.maximum(_FACTORS[weights] * trace.noise[name] + _FLOOR[trace.compute_dtype])
    worst = int((distance_S / allowed_S).argmax())
    same = bool((distance_S <= allowed_S).all())
    return IdentityReport(
        same, weights, trace.state_names[worst], float(distance_S[worst]), float(allowed_S[worst]), float(distance_S.median()), agreement
    )


def _explained_by(weights: str) -> tuple[str, ...]:
    """Which measured roundings weights of this look may have undergone: a quantised copy may have been cast as well."""
    casts = {"float32": (), "float16": ("float16",), "bfloat16": ("bfloat16",)}
    return casts.get(weights, ("bfloat16", weights))


def named_states(target: Target, ids: list[int]) -> dict[str, torch.Tensor]:
    """Every state [P, H] that a trace would sketch, by its name there: `target` as loaded, over any token ids."""
    compute = _compute_dtype(target)
    return _states(target, ids, lambda weight: weight.to(compute))


def _sketches(target: Target, ids: list[int], change: Rounding) -> tuple[tuple[str, ...], torch.Tensor]:
    """Names and sketches [S, P, K] of every state, computed with `change(weight)` in place of the weights."""
    states = _states(target, ids, change)
    return tuple(states), torch.stack([sketch(state_PH) for state_PH in states.values()])


def _states(target: Target, ids: list[int], change: Rounding) -> dict[str, torch.Tensor]:
    taps = [Tap(boundary) for boundary in range(target.num_layers + 1)] + [Tap(None)]
    with torch.no_grad(), rounded(target, change), _read_mids(target) as mids, read_taps(target, taps) as reader:
        whole = run_backbone(target, [ids])
        states = dict(zip(map(state_name, taps), reader.states(), strict=True))
    states = {name: state for name, state in states.items() if name != "final"} | mids | {"final": states["final"]}
    return {name: whole(state)[0] for name, state in states.items()}


@contextlib.contextmanager
def _read_mids(target: Target) -> Iterator[dict[str, torch.Tensor]]:
    """The residual between attention and MLP of each layer, for families whose MLP norm reads it; else nothing."""
    seen: dict[str, torch.Tensor] = {}
    norms = [(f"mid:{index}", _mlp_norm(layer)) for index, layer in enumerate(target.layers)]

    def hook(name: str) -> Any:
        return lambda module, args, kwargs: seen.update({name: first_input(args, kwargs, name)})

    handles = [norm.register_forward_pre_hook(hook(name), with_kwargs=True) for name, norm in norms if norm is not None]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _mlp_norm(layer: nn.Module) -> nn.Module | None:
    """The norm that reads the residual after attention. Families that norm a branch's output instead have none by that name."""
    names = ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2")
    norms_outputs = hasattr(layer, "post_feedforward_layernorm") and not hasattr(layer, names[0])
    if norms_outputs or getattr(layer, "use_parallel_residual", False):
        return None
    return next((getattr(layer, name) for name in names if hasattr(layer, name)), None)


@torch.no_grad()
def _top1(target: Target, ids: list[int]) -> torch.Tensor:
    ids_1P = torch.tensor([ids], device=target.device)
    return target.model(input_ids=ids_1P, use_cache=False).logits[0].argmax(-1).cpu()


def _token_ids(target: Target) -> list[int]:
    """The text in the target's tokens, without special ones; said again if a large vocabulary makes it short."""
    once = target.tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    if not once:
        raise UserError("the target's tokenizer gives no tokens for plain text", remedy="check tokenizer.json")
    ids = (once * (1 + _NUM_POSITIONS // len(once)))[:_NUM_POSITIONS]
    limit = target.max_positions
    if limit < MIN_POSITIONS:
        raise UserError("the target has too few positions for a trace", got=limit, allowed=f"at least {MIN_POSITIONS}")
    return list(ids[:limit])


def _compute_dtype(target: Target) -> torch.dtype:
    largest = max(sum(parameter.numel() for parameter in layer.parameters()) for layer in target.layers)
    return torch.float32 if 4 * largest <= _LARGEST_FP32_LAYER else target.dtype


def _then(change: Rounding, dtype: torch.dtype, compute: torch.dtype) -> Rounding:
    return lambda weight: change(weight).to(dtype).to(compute)
