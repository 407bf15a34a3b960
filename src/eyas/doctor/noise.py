"""Does a matrix look as if it had never been trained? Fresh noise has rows and columns of equal length, no heavy tails and no direction
of its own: its largest singular value lies at the edge that chance allows (Marchenko and Pastur 1967; its spread: Johnstone 2001).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

_TURNS = 24  # of the power iteration
_ROOM = 0.8  # of Johnstone's scale, min(m, n)^(-2/3), above the edge
_EVEN = (0.5, 1.45)  # spread of lengths, in units of that of normal noise; uniform noise has less
_TAILS = (1.7, 3.25)  # kurtosis: 1.8 for uniform numbers, 3 for normal ones
_SMALLEST = 32


def is_noise(weight: torch.Tensor) -> bool:
    """Of a matrix; small ones say too little."""
    values = weight.detach().float()
    if values.ndim != 2 or min(values.shape) < _SMALLEST or not bool(torch.isfinite(values).all()):
        return False
    spread = float(values.std())
    if spread == 0.0 or abs(float(values.mean())) > 0.05 * spread:
        return False
    tails = float(((values - values.mean()) ** 4).mean()) / spread**4
    even = (_spread(values), _spread(values.T))
    if not _TAILS[0] < tails < _TAILS[1] or not all(_EVEN[0] < part < _EVEN[1] for part in even):
        return False
    rows, columns = values.shape
    edge = spread * (rows**0.5 + columns**0.5)
    return _largest(values) < edge * (1 + _ROOM * min(rows, columns) ** (-2 / 3))


def untrained_parts(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Matrices of the layer and fc that are noise; none if most are, as in a draft that has hardly been trained at all."""
    parts = {name: tensor for name, tensor in tensors.items() if name.startswith(("fc.weight", "midlayer.")) and tensor.ndim == 2}
    noise = [name for name, tensor in parts.items() if is_noise(tensor)]
    return noise if len(noise) <= len(parts) / 2 else []


def _spread(values: torch.Tensor) -> float:
    """Of the rows' lengths, in units of what noise has."""
    lengths = values.norm(dim=1)
    return float(lengths.std() / lengths.mean()) * (2 * values.shape[1]) ** 0.5


def _largest(values: torch.Tensor) -> float:
    """The largest singular value, from below."""
    start = torch.ones(values.shape[1]) + 0.01 * torch.arange(values.shape[1]).float().cos()
    for _ in range(_TURNS):
        start = values.T @ (values @ start)
        start = start / start.norm().clamp_min(1e-30)
    return float((values @ start).norm())
