"""eyas quickstart: the whole loop on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption


def command(
    out: Annotated[Path, typer.Option(help="A folder for everything: target, chats, dump, draft, summary.json, report.png.")],
    minutes: Annotated[float, typer.Option(help="How long the show may take on two cores; training gets what the rest leaves.")] = 11.5,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    as_json: JsonOption = False,
) -> None:
    """Get a target and chats that it answered, capture its states, train a draft, evaluate it and decode with it.

    No hub and no GPU needed. A run that was killed goes on when the command is repeated.
    """
    from eyas.cli.options import emit
    from eyas.quickstart.recipe import Recipe
    from eyas.quickstart.run import run_quickstart
    from eyas.targets.devices import resolve_device, resolve_dtype

    summary = run_quickstart(out, Recipe.for_minutes(minutes), resolve_device(device), resolve_dtype(dtype))
    if as_json:
        emit(summary, as_json)
    if summary["lossless"] is False or (summary["shipped"] or {}).get("lossless") is False:
        raise typer.Exit(1)
