"""What --device and --dtype say, in words of torch."""

from __future__ import annotations

import torch

from eyas.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def resolve_device(name: str) -> torch.device:
    """`auto` is cuda where there is one. Raises UserError for an unknown or absent device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name) if name.split(":")[0] in ("cpu", "cuda") else None
    except RuntimeError:  # the number of the GPU is none
        device = None
    if device is None:
        raise UserError("unknown --device", got=name, allowed="auto, cpu, cuda, cuda:N", remedy="leave --device out: auto finds a GPU")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "--device cuda, but torch sees no GPU",
            got=name,
            allowed="auto, cpu",
            remedy="install a CUDA build of torch, or use --device cpu",
        )
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError("torch sees no such GPU", got=name, allowed=f"cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return device


def resolve_dtype(name: str) -> torch.dtype:
    full = _SHORT.get(name, name)
    if full not in DTYPES:
        raise UserError(
            "unknown --dtype", got=name, allowed="float32 (fp32), bfloat16 (bf16), float16 (fp16)", remedy="write --dtype bf16 or fp32"
        )
    return DTYPES[full]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
