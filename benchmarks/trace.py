"""How often `eyas trace check` says rightly what a slot holds: every state of a target, rounded and damaged; JSON out.

    python benchmarks/trace.py --target target --out trace.json

States come from transformers' own output_hidden_states over the trace's text, in bf16. A slot counts as named if the check says
which state it is, and as right if the verdict is the case's own, too. Partial states are made by hand from the weights of the
target's last linear layers, so the target must be Llama-style.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.capture.check import Capture, check_captures
from eyas.capture.fingerprint import Trace
from eyas.capture.reference import Reference, reference_of_target, reference_of_trace
from eyas.capture.rounding import to_fp8, to_int8
from eyas.capture.rows import round_robin, zig_zag
from eyas.capture.trace import record_trace
from eyas.files import write_json
from eyas.taps import Tap
from eyas.targets.cpu_linear import weight_of
from eyas.targets.loading import load_target
from eyas.targets.target import Target

States = dict[str, torch.Tensor]  # a tap's name -> [P, H]
Make = Callable[[str, torch.Tensor], list[torch.Tensor] | None]


@dataclass(frozen=True)
class Case:
    """`make` gives, for one state, what each rank wrote [rows, W]; None where there is no such thing for that state."""

    name: str
    verdict: str
    make: Make
    with_target: bool = False


def states_of(target: Target, ids: list[int]) -> States:
    """Every boundary and the final state, bf16, by transformers alone."""
    last: list[torch.Tensor] = []
    handle = target.layers[-1].register_forward_hook(
        lambda module, args, output: last.append(output[0] if isinstance(output, tuple) else output)
    )
    try:
        with torch.no_grad():
            hidden = target.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    finally:
        handle.remove()
    named = {str(Tap(boundary)): state[0] for boundary, state in enumerate(hidden[:-1])}
    return {**named, str(Tap(target.num_layers)): last[0].reshape(hidden[-1][0].shape), "final": hidden[-1][0]}


def shares_of(target: Target, ids: list[int], ranks: int) -> dict[str, list[torch.Tensor]]:
    """The mid-layer residual of each layer with each rank's share of its MLP's sum, by the name of the boundary behind it."""
    seen: dict[int, tuple[torch.Tensor, Any]] = {}
    mids: dict[int, torch.Tensor] = {}

    def keep(index: int) -> tuple[Any, Any]:
        layer: Any = target.layers[index]
        return (
            layer.post_attention_layernorm.register_forward_pre_hook(lambda module, args: mids.update({index: args[0][0]})),
            layer.mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.update({index: (args[0][0], weight_of(module))})),
        )

    handles = [handle for index in range(target.num_layers) for handle in keep(index)]
    try:
        with torch.no_grad():
            target.model(input_ids=torch.tensor([ids]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    for index, (input_PI, weight_HI) in seen.items():
        parts = zip(input_PI.chunk(ranks, -1), weight_HI.chunk(ranks, -1), strict=True)
        found[str(Tap(index + 1))] = [mids[index] + part @ weight.detach().T for part, weight in parts]
    return found


def rows_at(places: torch.Tensor) -> Make:
    return lambda name, state: [state[places]]


def rolled(by: int) -> Make:
    return lambda name, state: [state.roll(-by, 0)]


def from_table(table: Mapping[str, list[torch.Tensor]]) -> Make:
    return lambda name, state: table.get(name)


def damages(target: Target, ids: list[int]) -> Iterator[Case]:
    length = len(ids)
    for by in (1, -1, 3):
        yield Case(f"shifted by {by:+d}", "rows shifted", rolled(by))
    for split in (zig_zag, round_robin):
        what = split.__name__.replace("_", "-")
        for ranks in (2, 4):
            order = split(length, ranks)
            yield Case(f"{what} order of {ranks} ranks", "rows permuted", rows_at(torch.cat(order)))
            yield Case(f"the rows of one of {ranks} ranks, {what}", "rows scattered", rows_at(order[1]))
    mixed = torch.randperm(length, generator=torch.Generator().manual_seed(0))
    yield Case("an order without a name", "rows permuted", rows_at(mixed))
    yield Case("the columns of two ranks", "columns scattered", lambda name, state: list(state.chunk(2, -1)))
    yield Case("the columns of one of two ranks", "columns scattered", lambda name, state: [state.chunk(2, -1)[1]], True)
    yield Case("half as long", "scaled", lambda name, state: [state / 2])
    norms: dict[str, Any] = {str(Tap(index)): layer.input_layernorm for index, layer in enumerate(target.layers)}
    yield Case("through the final norm", "normed", lambda name, state: [target.norm(state)] if name in norms else None, True)
    yield Case("through the next layer's norm", "normed", lambda name, state: [norms[name](state)] if name in norms else None, True)
    for ranks in (2, 4):
        shares = shares_of(target, ids, ranks)
        yield Case(f"partial, all {ranks} ranks", "partial", from_table(shares))
        one = from_table({name: [parts[1]] for name, parts in shares.items()})
        yield Case(f"partial, one of {ranks} ranks, by the target", "partial", one, True)
        yield Case(f"partial, one of {ranks} ranks, by the trace alone", "partial", one)


def count(case: Case, states: States, ids: tuple[int, ...], trace: Trace, references: dict[int, Reference]) -> dict[str, Any]:
    found, missed = {"slots": 0, "named": 0, "right": 0}, []
    for name, state in states.items():
        with torch.no_grad():
            ranks = case.make(name, state)
        if ranks is None:
            continue
        captures = [Capture((ids,), (rows[:, None],), f"rank {number}") for number, rows in enumerate(ranks)]
        reference = references[captures[0].width] if case.with_target else reference_of_trace(trace, [ids])
        slot = check_captures(reference, captures, [Tap.parse(name)] if case.verdict == "right" else None).slots[0]
        found["slots"] += 1
        found["named"] += slot.found == name
        right = slot.found == name and slot.verdict == case.verdict
        found["right"] += right
        if not right:
            missed.append(f"{name}: {slot.text()}")
    return {**found, "missed": missed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    target = load_target(arguments.target, device=torch.device("cpu"), dtype=torch.bfloat16)
    started = time.process_time()
    trace = record_trace(target)
    recorded = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "trace.safetensors")
        size = (Path(folder) / "trace.safetensors").stat().st_size
    ids = tuple(trace.token_ids.tolist())
    states = states_of(target, list(ids))
    widths = (target.hidden_size, target.hidden_size // 2)
    references = {width: reference_of_target(target, [ids], width) for width in widths}
    rounded = load_target(arguments.target, device=torch.device("cpu"), dtype=torch.bfloat16)
    for layer in rounded.layers:
        for parameter in layer.parameters():
            parameter.data.copy_(to_int8(parameter.data))
    plain = {
        "bf16": states,
        "states rounded to int8": {name: to_int8(state) for name, state in states.items()},
        "states rounded to fp8": {name: to_fp8(state) for name, state in states.items()},
        "weights rounded to int8": states_of(rounded, list(ids)),
    }
    results = {name: count(Case(name, "right", lambda name, state: [state]), held, ids, trace, references) for name, held in plain.items()}
    boundaries = {name: state for name, state in states.items() if name != "final"}
    for case in damages(target, list(ids)):
        results[case.name] = count(case, boundaries, ids, trace, references)
        print(json.dumps({case.name: results[case.name]}), flush=True)
    value = {
        "target": target.name,
        "layers": target.num_layers,
        "positions": len(ids),
        "trace_bytes": size,
        "record_cpu_seconds": recorded,
        "check_cpu_seconds": time.process_time() - started - recorded,
        "cases": results,
    }
    write_json(arguments.out, value)
    for name, found in results.items():
        print(f"{found['right']:3} of {found['slots']:3} right, {found['named']:3} named  {name}")


if __name__ == "__main__":
    main()
