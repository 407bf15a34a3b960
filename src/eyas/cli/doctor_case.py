"""eyas doctor case: the story of a hunt that takes several runs, and hypotheses of the user's own in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import JsonOption, emit

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The story of a hunt that takes several runs.")

CaseArgument = Annotated[Path, typer.Argument(help="The folder that eyas doctor --case kept.")]


@app.command()
def show(
    case: CaseArgument,
    html: Annotated[Path | None, typer.Option(help="Write the story as one HTML page to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what was examined, found, tried and changed, in order."""
    from eyas.doctor.case import Case
    from eyas.doctor.case_story import story, story_html, to_json
    from eyas.files import write_text

    held = Case(case)
    lines = story(held)
    if html is not None:
        write_text(html, story_html(held))
    if as_json:
        emit(to_json(held), True)
    else:
        print("\n".join(lines))


@app.command()
def add(
    case: CaseArgument,
    name: Annotated[str, typer.Argument(help="A short name for the hypothesis.")],
    command: Annotated[str, typer.Option(help="The command that decides it, for a shell.")],
    claim: Annotated[str, typer.Option(help="What is claimed, in words.")] = "",
    status: Annotated[int | None, typer.Option(help="The exit status if the claim is true.")] = None,
    contains: Annotated[str | None, typer.Option(help="A text that the output holds if the claim is true.")] = None,
    number: Annotated[str | None, typer.Option(help="A pattern with one group around a number in the output.")] = None,
    low: Annotated[float, typer.Option(help="The least that the number is if the claim is true.")] = float("-inf"),
    high: Annotated[float, typer.Option(help="The most that the number is if the claim is true.")] = float("inf"),
    as_json: JsonOption = False,
) -> None:
    """Add a hypothesis of your own: a command, and what it gives if the claim is true. It is not run yet."""
    from eyas.doctor.case import Case
    from eyas.doctor.case_own import Expected, add_own
    from eyas.doctor.case_story import told

    event = add_own(Case(case), name, claim, command, Expected(status, contains, number, low, high))
    if as_json:
        emit({"number": event.number, "name": name, "claim": event.value["claim"], "command": command}, True)
    else:
        print("\n".join(told(event)))
        print(f"kept as entry {event.number} of the case {case}; run the command: eyas doctor case try {case} {shlex.quote(name)}")


@app.command("try")
def try_command(
    case: CaseArgument,
    name: Annotated[str, typer.Argument(help="The hypothesis, as it was named.")],
    timeout: Annotated[float, typer.Option(help="Seconds after which the command is stopped.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Run the command of a hypothesis and keep what came of it. Exit status 1 if the claim is confirmed."""
    from eyas.doctor.case import Case
    from eyas.doctor.case_own import try_own

    event = try_own(Case(case), name, timeout)
    emit({key: event.value[key] for key in ("name", "claim", "verdict", "evidence", "seconds")}, as_json)
    if event.value["verdict"] == "confirmed":
        raise typer.Exit(1)
