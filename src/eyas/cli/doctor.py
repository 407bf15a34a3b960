"""eyas doctor: from "the accept rate is low" to the cause and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import JsonOption, TrustRemoteCode, emit

_ENGINE = "What serves the draft: vllm==V or sglang==V (judged without running it), or embedded (run)."
_DEPTH = "How deep: static (configs and headers), weights, replay (real text), live (the embedded engine, figures)."


def command(
    target: Annotated[
        str | None, typer.Option(help="The target: a folder or a hub id; its layers may be absent if a dump is given.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="The draft: Eyas's or another project's folder, also one that does not load.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Hidden states: Eyas's or another project's.")] = None,
    data: Annotated[Path | None, typer.Option(help="Chats to replay: your own prompts (default: the dump's, else held-out ones).")] = None,
    engine: Annotated[str | None, typer.Option(help=_ENGINE)] = None,
    metrics: Annotated[Path | None, typer.Option(help="What the server's /metrics gave, or its figures as JSON.")] = None,
    log: Annotated[Path | None, typer.Option(help="The server's log.")] = None,
    depth: Annotated[str, typer.Option(help=_DEPTH)] = "live",
    only: Annotated[str | None, typer.Option(help="Codes or kinds (letters) to test, with commas between.")] = None,
    skip: Annotated[str | None, typer.Option(help="Codes or kinds to leave out.")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes after which no further test begins.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of real text to replay.")] = 3000,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be tested, and run nothing.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Find out why a draft is accepted rarely: test every known cause on what is given, and measure the fix.

    Exit status 0 if nothing is wrong (or the draft is merely weak), 1 if a fault was found.
    """
    from eyas.doctor.exhibits import Exhibits, Options
    from eyas.doctor.hypothesis import DEPTHS
    from eyas.errors import UserError

    if depth not in DEPTHS:
        raise UserError("--depth is not known", got=depth, allowed=", ".join(DEPTHS))
    exhibits = Exhibits(target, draft, dump, data, engine, metrics, log, trust_remote_code)
    depths = DEPTHS[: DEPTHS.index(depth) + 1]
    options = Options(depths, _names(only), _names(skip), budget, rows)
    if plan:
        _plan(exhibits, options, as_json)
        return
    from eyas.doctor import diagnose

    found = diagnose(exhibits, options)
    if as_json:
        emit(found.to_json(), True)
    else:
        from rich.console import Console

        from eyas.doctor.terminal import show

        show(found, Console(highlight=False))
    raise typer.Exit(found.exit_status)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _plan(exhibits: object, options: object, as_json: bool) -> None:
    from rich.console import Console

    from eyas.doctor.exhibits import Exhibits, Options
    from eyas.doctor.planning import plan
    from eyas.doctor.terminal import show_plan

    assert isinstance(exhibits, Exhibits)
    assert isinstance(options, Options)
    found = plan(exhibits, options)
    if as_json:
        emit(
            {
                "plan": [
                    {"code": h.code, "kind": h.kind, "depth": h.depth, "claim": h.claim, "test": h.test, "seconds": h.seconds, "missing": m}
                    for h, m in found
                ]
            },
            True,
        )
    else:
        show_plan(found, Console(highlight=False))
