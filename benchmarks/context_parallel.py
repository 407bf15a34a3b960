"""What context parallelism saves: bytes of live tensors on one rank at the peak of a prefill, by what they are for.

    torchrun --nproc-per-node 4 benchmarks/context_parallel.py --target TARGET --tokens 1024

    scores   tensors with this rank's positions and all positions: masks, attention scores, the indexer's scores
    rows     tensors with this rank's positions only: residuals, activations, queries
    keys     tensors with all positions only: gathered keys, values, latents, and what is made of them

In one process rows and keys cannot be told apart: all of it stands under rows. Weights are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import weakref
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from eyas.capture.forward import run_backbone
from eyas.capture.parallel.share import Share
from eyas.targets.devices import resolve_dtype
from eyas.targets.layout import start_layout
from eyas.targets.loading import load_target
from eyas.targets.target import Target

KINDS = ("scores", "rows", "keys")


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that live at a time, and the most that lived, by kind. What lived before is not seen."""

    def __init__(self, num_rows: int, num_positions: int) -> None:
        super().__init__()
        self.num_rows, self.num_positions = num_rows, num_positions
        self.peak = dict.fromkeys((*KINDS, "all"), 0)
        self._now = dict.fromkeys((*KINDS, "all"), 0)
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self._known | given:
                self._add(leaf)
        return output

    def _add(self, tensor: torch.Tensor) -> None:
        storage, kind = tensor.untyped_storage(), self._kind(tensor)
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._remove, storage._cdata, kind, storage.nbytes())
        for name in (kind, "all"):
            self._now[name] += storage.nbytes()
            self.peak[name] = max(self.peak[name], self._now[name])

    def _remove(self, key: int, kind: str, size: int) -> None:
        self._known.discard(key)
        for name in (kind, "all"):
            self._now[name] -= size

    def _kind(self, tensor: torch.Tensor) -> str:
        sizes = list(tensor.shape)
        if self.num_rows == self.num_positions:
            return "scores" if sizes.count(self.num_rows) > 1 else "rows"
        if self.num_positions in sizes:
            return "scores" if self.num_rows in sizes else "keys"
        return "rows"


def measure(target: Target, num_tokens: int) -> dict[str, int]:
    """Peak bytes on this rank while `num_tokens` random tokens are prefilled.

    gloo's thread lets go of tensors at some time after the wait for them, so that it is given copies, which are not counted.
    """
    rng = random.Random(0)
    ids = [rng.randrange(1, target.vocab_size) for _ in range(num_tokens)]
    share = Share.of(target.layout, num_tokens, target.device)
    gather = dist.all_gather

    def gather_copies(parts: list[torch.Tensor], part: torch.Tensor, group: Any) -> None:
        with _disable_current_modes():
            copies = [torch.empty_like(part) for _ in parts]
            gather(copies, part.clone(), group=group)
            for mine, copy in zip(parts, copies, strict=True):
                mine.copy_(copy)

    with torch.no_grad(), patch.object(dist, "all_gather", gather_copies), LiveBytes(len(share.mine_S), share.padded) as live:
        run_backbone(target, [ids])
    return live.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    cp = int(os.environ.get("WORLD_SIZE", "1"))
    with start_layout(1, cp, "zig-zag", torch.device("cpu"), 600.0) as layout:
        target = load_target(options.target, device=torch.device("cpu"), dtype=resolve_dtype(options.dtype), layout=layout)
        peak = measure(target, options.tokens)
        if layout.writes:
            print(json.dumps({"cp": cp, "tokens": options.tokens, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
