"""eyas wiring translate: the config keys and launch flags that an engine and version need."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli.options import JsonOption, emit

if TYPE_CHECKING:
    from eyas.engines.plan import Plan


def translate(
    path: Annotated[str, typer.Argument(help="An Eyas draft, a dump or a wiring.json.")],
    to: Annotated[str, typer.Option("--to", help="Engine and version: vllm==0.33.0 or sglang==0.5.14.")],
    target: Annotated[str, typer.Option("--target", help="The target's folder; only its config.json is read.")],
    as_json: JsonOption = False,
) -> None:
    """Print the config keys and launch flags that make an engine feed a draft what it was trained on.

    Exit status 1 if no keys and flags do; the notes say why, and which engines and versions can. Nothing is run or written.
    """
    from eyas.engines.catalog import parse_engine
    from eyas.engines.plan import plan
    from eyas.engines.source import read_source
    from eyas.engines.target_facts import TargetFacts

    judged = parse_engine(to)
    wiring, draft = read_source(Path(path))
    found = plan(wiring, judged, TargetFacts.read(Path(target)), draft)
    if as_json:
        emit(found.to_json(), True)
    else:
        print(_text(judged.name, found))
    raise typer.Exit(0 if found.reachable else 1)


def _text(name: str, found: Plan) -> str:
    notes = [f"- {note}" for note in found.notes]
    if not found.reachable:
        return "\n".join([f"{name} cannot feed this draft what it was trained on:", *notes])
    keys = json.dumps(dict(found.config), indent=2)
    return "\n".join(
        [f"{name} feeds it with these keys in the draft's config.json:", keys, "and these flags:", shlex.join(found.flags), *notes]
    )
