"""How one forward of a target is spread over processes: tensor parallelism (tp) and context parallelism (cp).

Every rank runs the same program on the same inputs. The ranks of one tensor-parallel group hold parts of the weights and stand
next to each other, so that they share a machine; the ranks of one context-parallel group hold parts of the positions.

    rank   0      1      2      3          tp = 2, cp = 2
    tp     0      1      0      1          weights split between 0 and 1, and between 2 and 3
    cp     0      0      1      1          positions split between 0 and 2, and between 1 and 3
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from eyas.errors import UserError
from eyas.progress import console

Order = Literal["zig-zag", "round-robin"]
ORDERS: tuple[Order, ...] = ("zig-zag", "round-robin")
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
DEFAULT_TIMEOUT = 1800.0  # ranks read large checkpoints at different speeds
_HEARTBEAT = 1.0  # seconds
Value = TypeVar("Value")


@dataclass(frozen=True)
class Layout:
    """`order` says which positions a context-parallel rank computes. `cp_group`: those that share this rank's texts; None if it is alone.

    `timeout_seconds`: so long a rank waits for another.
    """

    tp: int = 1
    cp: int = 1
    order: Order = "zig-zag"
    rank: int = 0
    cp_group: Any = None
    timeout_seconds: float = DEFAULT_TIMEOUT

    @property
    def size(self) -> int:
        return self.tp * self.cp

    @property
    def cp_rank(self) -> int:
        return self.rank // self.tp

    @property
    def writes(self) -> bool:
        """One rank speaks and writes for all."""
        return self.rank == 0

    def to_json(self) -> dict[str, Any]:
        return {"tp": self.tp, "cp": self.cp} | ({"cp_order": self.order} if self.cp > 1 else {})

    def on_rank_0(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0 alone and give every rank its answer; what it raises as a UserError is raised everywhere.

        It may take as long as it likes: the others hear of rank 0 while they wait.
        """
        if self.size == 1:
            return work()
        said: list[Any] = [None, None]
        if self.rank == 0:
            with ThreadPoolExecutor(max_workers=1) as aside:
                running = aside.submit(_answer, work)
                while not wait([running], timeout=_HEARTBEAT).done:
                    self._heard(0)
            said = running.result()
            self._heard(1)
        else:
            while not self._heard(0):
                pass
        dist.broadcast_object_list(said, src=0)
        value, problem = said
        if problem is not None:
            raise problem
        return value

    def of_all(self, value: int) -> list[int]:
        """The number that each rank holds, in the order of ranks."""
        if self.size == 1:
            return [value]
        parts = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        dist.all_gather(parts, torch.tensor([value], device=self._device))
        return [int(part) for part in parts]

    def limit_waits(self) -> None:
        """Hold every group of ranks to the time that a rank waits for another; those that transformers makes take torch's default."""
        if self.size > 1:
            for group in list(_world.pg_map):
                _set_pg_timeout(timedelta(seconds=self.timeout_seconds), group)

    def _heard(self, value: int) -> int:
        """What rank 0 says."""
        number = torch.tensor([value], device=self._device)
        dist.broadcast(number, src=0)
        return int(number)

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if dist.get_backend() == "gloo" else torch.device("cuda", torch.cuda.current_device())


def _answer(work: Callable[[], Value]) -> list[Any]:
    try:
        return [work(), None]
    except UserError as error:
        return [None, error]


SINGLE = Layout()


def require_prefill_only(layout: Layout, what: str) -> None:
    """Raises UserError under context parallelism: its cache gathers keys and stores none, so a later token would see no context."""
    if layout.cp > 1:
        raise UserError(
            f"context parallelism is for prefill, and {what} decodes",
            got=f"--cp {layout.cp}",
            allowed="--cp 1; tensor parallelism decodes as well",
            remedy="load the target without context parallelism",
        )


@contextlib.contextmanager
def start_layout(tp: int, cp: int, order: str, device: torch.device, timeout_seconds: float) -> Iterator[Layout]:
    """Join the other ranks, which torchrun started, for the body. Only rank 0 speaks on the console.

    Args:
        timeout_seconds: after which a rank that waits for another gives up.

    Raises:
        UserError: sizes below 1, an unknown order, another number of processes than tp · cp, a GPU that is another rank's; later
            on, a rank that is gone.
    """
    _check(tp, cp, order, timeout_seconds)
    if tp * cp == 1:
        yield SINGLE
        return
    if device.type == "cuda":
        if device.index != int(os.environ["LOCAL_RANK"]):
            raise UserError("each rank takes the GPU of its own number", got=f"--device {device}", allowed="--device auto or cuda")
        torch.cuda.set_device(device)
    rank, was_quiet = int(os.environ["RANK"]), console.quiet
    try:
        dist.init_process_group(_BACKENDS[device.type], timeout=timedelta(seconds=timeout_seconds))
        console.quiet = rank != 0
        layout = lay_out(tp, cp, order, device, timeout_seconds)
        layout.limit_waits()
        yield layout
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise UserError(
            f"rank {rank} lost another rank",
            got=str(error).splitlines()[0],
            remedy="see that rank's own error: torchrun names the first that failed; the same command goes on where this one stopped",
        ) from error
    finally:
        console.quiet = was_quiet
    dist.destroy_process_group()  # after an error it could wait for ranks that are gone; the process ends without it


def lay_out(tp: int, cp: int, order: str, device: torch.device, timeout_seconds: float = DEFAULT_TIMEOUT) -> Layout:
    """The layout of ranks that have joined already. Raises UserError where transformers would put shares on another kind of device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    if tp > 1 and accelerator is not None and accelerator.type != device.type:
        raise UserError(
            "transformers puts the shares of tensor parallelism on the accelerator", got=f"--device {device.type}", allowed=accelerator.type
        )
    mesh = dist.init_device_mesh(device.type, (cp, tp), mesh_dim_names=("cp", "tp"))
    return Layout(
        tp=tp,
        cp=cp,
        order=order,  # type: ignore[arg-type]
        rank=dist.get_rank(),
        cp_group=mesh.get_group("cp") if cp > 1 else None,
        timeout_seconds=timeout_seconds,
    )


def local_device(name: str) -> str:
    """Of the GPUs of a machine, each rank takes the one of its own number."""
    started = "LOCAL_RANK" in os.environ
    return f"cuda:{os.environ['LOCAL_RANK']}" if started and name in ("auto", "cuda") and torch.cuda.is_available() else name


def _check(tp: int, cp: int, order: str, timeout_seconds: float) -> None:
    for option, size in (("--tp", tp), ("--cp", cp)):
        if size < 1:
            raise UserError(f"{option} must be at least 1", got=size)
    if order not in ORDERS:
        raise UserError("unknown --cp-order", got=order, allowed=", ".join(ORDERS))
    if not 0 < timeout_seconds < float("inf"):
        raise UserError("--rank-timeout must be a number of seconds", got=timeout_seconds, allowed="above 0")
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != tp * cp:
        raise UserError(
            f"--tp times --cp must be the number of processes, and {tp} times {cp} is not",
            got=f"{started} started" + ("" if "WORLD_SIZE" in os.environ else " (not by torchrun)"),
            allowed=tp * cp,
            remedy=f"start {tp * cp} by torchrun --nproc-per-node (docs/parallel.md), or choose --tp and --cp for {started}",
        )
