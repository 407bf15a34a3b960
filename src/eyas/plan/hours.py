"""Hours: capture and training apart (offline, over a disk), or at the same time on two sets of GPUs (online, over a network).

    capture   tokens a second and GPU = u_c · peak / FLOPs a token of the target's forward
    training  tokens a second and GPU = u_t · peak / FLOPs a row of the draft, over all steps

u_c and u_t are what TorchSpec's published run for Kimi-K2.5 comes to: 6 B tokens in 1,500 H200 hours, half of the GPUs
capturing and half training a full-vocabulary draft of four steps. Either half may have waited for the other, so both are
lower bounds; rates that you measured are better.

What the disk or the network cannot carry slows the GPUs down to its own pace.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.plan.gpus import Gpu

CAPTURE_SHARE, TRAIN_SHARE = 0.17, 0.11  # of dense bf16 peak; tests/unit/test_plan.py works them out again
SOURCE = "as in TorchSpec's published Kimi-K2.5 run, 6 B tokens in 1,500 H200 hours, half of them capturing; a lower bound"
DISK_RATE, NETWORK_RATE = 5e9, 50e9  # assumptions: one good NVMe disk; one 400 Gb/s port
_HOUR = 3600.0


@dataclass(frozen=True)
class Rates:
    """Tokens a second and GPU, and bytes a second of the disk and of the network between capture and training."""

    capture: float
    train: float
    disk: float
    network: float


@dataclass(frozen=True)
class Run:
    """`limit`: in words, what sets the pace. `capture_gpus` and `train_gpus` are the same ones offline."""

    capture_gpus: int
    train_gpus: int
    capture_hours: float
    train_hours: float
    hours: float
    limit: str
    bytes_per_second: float


def default_rate(gpu: Gpu, share: float, flops: float) -> float:
    return share * gpu.flops / flops


def offline(rates: Rates, *, gpus: int, capture_gpus: int, tokens: int, epochs: int, bytes_per_token: float) -> Run:
    """Capture once on `capture_gpus`, then train `epochs` times over the dump on all of them."""
    capture, write = tokens / (rates.capture * capture_gpus), tokens * bytes_per_token / rates.disk
    train, read = epochs * tokens / (rates.train * gpus), epochs * tokens * bytes_per_token / rates.disk
    parts = {"capture": capture, "writing the dump": write, "training": train, "reading the dump": read}
    first = "writing the dump" if write > capture else "capture"
    second = "reading the dump" if read > train else "training"
    return Run(
        capture_gpus=capture_gpus,
        train_gpus=gpus,
        capture_hours=parts[first] / _HOUR,
        train_hours=parts[second] / _HOUR,
        hours=(parts[first] + parts[second]) / _HOUR,
        limit=first if parts[first] >= parts[second] else second,
        bytes_per_second=bytes_per_token * min(rates.capture * capture_gpus, rates.disk / bytes_per_token),
    )


def online(rates: Rates, *, gpus: int, gpus_together: int, tokens: int, epochs: int, bytes_per_token: float) -> Run | None:
    """The fastest split into GPUs that capture, so many together, and GPUs that train; every epoch captures again.

    None if no GPU would be left to train on.
    """
    splits = [groups * gpus_together for groups in range(1, (gpus - 1) // gpus_together + 1)]
    runs = [_online(rates, capturing, gpus - capturing, epochs * tokens, bytes_per_token) for capturing in splits]
    return min(runs, key=lambda run: run.hours) if runs else None


def _online(rates: Rates, capture_gpus: int, train_gpus: int, tokens: int, bytes_per_token: float) -> Run:
    pace = {
        "capture": rates.capture * capture_gpus,
        "training": rates.train * train_gpus,
        "the network": rates.network / bytes_per_token,
    }
    limit = min(pace, key=lambda name: pace[name])
    return Run(
        capture_gpus=capture_gpus,
        train_gpus=train_gpus,
        capture_hours=tokens / pace["capture"] / _HOUR,
        train_hours=tokens / pace["training"] / _HOUR,
        hours=tokens / pace[limit] / _HOUR,
        limit=limit,
        bytes_per_second=pace[limit] * bytes_per_token,
    )
