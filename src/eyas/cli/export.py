"""eyas export: an Eyas draft out, as a checkpoint of another project or for an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.cli.options import JsonOption, emit
from eyas.errors import UserError


def command(
    draft: Annotated[Path, typer.Argument(help="An Eyas draft's folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="eagle, specforge, speculators, modelopt, torchspec, automodel or angelslim; vllm==V or sglang==V for an engine."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; an earlier export there is replaced.")],
    target: Annotated[
        str | None, typer.Option("--target", help="For an engine: the target's folder, of which config.json is read.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a draft as another project keeps its own. What that format has no keys for goes into eyas_wiring.json beside it.

    Exit status 1, and nothing written, if an engine cannot feed the draft what it was trained on, as eyas wiring translate says.
    """
    from eyas.engines.catalog import names_engine

    if not names_engine(to):
        from eyas.formats.exporting import export_draft

        show(export_draft(draft, to, out).to_json(), as_json)
        return
    if target is None:
        raise UserError("what an engine feeds a draft depends on the target", remedy="give --target")
    from eyas.engines.export import Unreachable, export_for_engine

    engine, _, version = to.partition("==")
    try:
        show({**export_for_engine(draft, engine, version, Path(target), out).to_json(), "reachable": True}, as_json)
    except Unreachable as answer:
        if as_json:
            emit({"written": [], "wiring": answer.wiring.to_json(), "assumed": [], "notes": list(answer.notes), "reachable": False}, True)
        else:
            print(answer)
        raise typer.Exit(1) from answer


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """A report as JSON, or the files, the states and every assumption and note as lines for people."""
    if as_json:
        emit(report, True)
        return
    emit({"written": ", ".join(report["written"]), "reads": ", ".join(report["wiring"]["taps"])}, False)
    for title in ("assumed", "notes"):
        for line in report[title]:
            print(f"{title.rstrip('s')}: {line}")
