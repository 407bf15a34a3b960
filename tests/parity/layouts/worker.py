"""Run by torchrun: every family in every layout of this many ranks; rank 0 writes what test_layouts.py compares.

torchrun --nproc-per-node 2 worker.py REQUEST.json
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from eyas.capture.parallel.agree import bit_hash
from eyas.errors import UserError
from eyas.targets.layout import Layout, lay_out
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from layouts import seeds
from layouts.probe import capture, decode, draft_tokens, picked_sets
from layouts.texts import texts

CPU = torch.device("cpu")
PEAK_TOKENS = 296  # neither it nor its parts are a size of the tiny targets, by which tensors are told apart
ROUNDED = ("llama", "gemma3_text")  # also captured in bf16
measure = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "context_parallel.py"))["measure"]


def main(request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=900))
    for tp, cp, order in request["layouts"]:
        layout = lay_out(tp, cp, order, CPU)
        shared = look_at_sharing(layout)
        if layout.writes:
            (Path(request["out"]) / f"shared-tp{tp}-cp{cp}-{order}.json").write_text(json.dumps(shared))
        for family, folder in request["targets"].items():
            target = load_target(folder, device=CPU, dtype=torch.float32, layout=layout)
            name = f"{family}-tp{tp}-cp{cp}-{order}"
            tensors, facts = look(target, layout)
            if family in ROUNDED:
                rounded = load_target(folder, device=CPU, dtype=torch.bfloat16, layout=layout)
                tensors["bf16_states"] = capture(rounded, texts(rounded.vocab_size))["states"]
            if family in request["seeded"] and 1 in (tp, cp):
                write_seeds(target, layout, Path(request["out"]), name, request["seeded"][family])
            if layout.writes:
                save_file(tensors, Path(request["out"]) / f"{name}.safetensors")
                (Path(request["out"]) / f"{name}.json").write_text(json.dumps(facts))
    dist.barrier()
    dist.destroy_process_group()


def look_at_sharing(layout: Layout) -> dict[str, list[int]]:
    """What every rank gets of what rank 0 does alone: an error, and an answer that takes longer than a heartbeat."""

    def refuse() -> None:
        raise UserError("refused")

    def answer() -> int:
        time.sleep(1.5)
        return 10 + layout.rank

    try:
        layout.on_rank_0(refuse)
        refused = 0
    except UserError:
        refused = 1
    return {"refused": layout.of_all(refused), "answered": layout.of_all(layout.on_rank_0(answer))}


def look(target: Target, layout: Layout) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    batch = texts(target.vocab_size)
    found = capture(target, batch)
    packed = capture(target, batch, packed=True)
    tensors = {**found, **{f"packed_{name}": tensor for name, tensor in packed.items()}}
    tensors["picked"] = picked_sets(target, batch[0])
    tensors["drafted"] = draft_tokens(target, found["states"], batch[0])
    facts: dict[str, Any] = {
        "hashes": {name: layout.of_all(bit_hash(tensor)) for name, tensor in tensors.items() if tensor.numel()},
    }
    try:
        facts["decoded"] = decode(target, [text[:9] for text in batch[:2]])
    except UserError as error:
        facts["refused"] = str(error)
    if layout.cp > 1:
        facts["peak_bytes"] = measure(target, PEAK_TOKENS)
    facts["rows_seen"] = rows_seen(target, batch[0])
    if layout.tp > 1:
        facts["embedding"] = look_at_embedding(target, batch[0])
        facts["split"] = sorted({generic(name) for name, weight in target.model.named_parameters() if isinstance(weight, DTensor)})
    return tensors, facts


def write_seeds(target: Target, layout: Layout, out: Path, name: str, ids: list[int]) -> None:
    """What each rank would have written, for `eyas trace check`."""
    for seed in seeds.TENSOR_PARALLEL if layout.tp > 1 else seeds.CONTEXT_PARALLEL:
        states = seed(target, ids).contiguous()
        save_file({"token_ids": torch.tensor(ids), "hidden_states": states}, out / f"{name}.{seed.__name__}.{layout.rank}.safetensors")


def look_at_embedding(target: Target, text: list[int]) -> dict[str, Any]:
    """How many rows of the table this rank holds, what its own lookup gives, and which collectives ran before the output."""
    weight = target.embed.weight
    assert isinstance(weight, DTensor)
    first = (target.layout.rank % target.layout.tp) * len(weight.to_local())
    counting = CommDebugMode()
    with torch.no_grad(), counting:
        whole = target.embed(torch.tensor([text]))
    return {
        "rows": len(weight.to_local()),
        "placement": str(weight.placements),
        "collectives": {str(name): count for name, count in counting.get_comm_counts().items()},
        "zero_rows": int((whole == 0).all(-1).sum()),
        "own_zero_rows": sum(not first <= token < first + len(weight.to_local()) for token in text),
    }


def rows_seen(target: Target, text: list[int]) -> int:
    """How many rows this rank's first layer computes."""
    seen: list[int] = []
    handle = target.layers[0].register_forward_pre_hook(lambda module, args, kwargs: seen.append(args[0].shape[1]), with_kwargs=True)
    try:
        capture(target, [text])
    finally:
        handle.remove()
    return seen[0]


def generic(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(json.loads(Path(sys.argv[1]).read_text()))
