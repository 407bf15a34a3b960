"""Options that several commands share, so that they read and behave alike everywhere. Importing this loads no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

TargetOption = Annotated[str, typer.Option("--target", help="The target: a Hugging Face folder or a hub id.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N; auto takes a GPU if there is one.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="bf16, fp32 or fp16.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; all else goes to stderr.")]
TensorParallelOption = Annotated[int, typer.Option("--tp", help="Split the weights over so many ranks, which torchrun starts.")]
RankTimeoutOption = Annotated[float, typer.Option("--rank-timeout", help="Seconds that a rank waits for another before it gives up.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the target's folder.")]


def emit(value: Mapping[str, Any], as_json: bool) -> None:
    """Print a command's result on stdout: one JSON object, or one `key  value` line a field for people.

    Raises ValueError for NaN and infinity, which JSON does not have: say None where a figure does not exist.
    """
    if as_json:
        json.dump(value, sys.stdout, allow_nan=False, ensure_ascii=False)
        print()
    else:
        print("\n".join(_lines(value, indent="")))


def _lines(value: Mapping[str, Any], indent: str) -> list[str]:
    width = max((len(key) for key in value), default=0)
    lines = []
    for key, part in value.items():
        if isinstance(part, Mapping) and part:
            lines += [f"{indent}{key}", *_lines(part, indent + "  ")]
        else:
            lines.append(f"{indent}{key:<{width}}  {_shown(part)}")
    return lines


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)
