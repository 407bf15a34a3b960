"""eyas doctor: from "the accept rate is low" to the cause and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import doctor_case
from eyas.cli.options import JsonOption, TrustRemoteCode, emit

if TYPE_CHECKING:
    from eyas.doctor.exhibits import Exhibits, Options
    from eyas.doctor.fix import FixReport

_ENGINE = "What serves the draft: vllm==V or sglang==V (judged without running it), or embedded (run)."
_SERVER = "A running OpenAI-compatible server to ask: http://HOST:PORT; its key is read from EYAS_API_KEY."
_METRICS = "What a server's /metrics gave, its figures as JSON, or what a benchmark printed: a file, or an address to read them from."
_DEPTH = "How deep: static (configs and headers), weights, replay (real text), live (a server, the embedded engine, figures)."

app = typer.Typer(rich_markup_mode=None)
app.add_typer(doctor_case.app, name="case")


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Option(help="The target: a folder or a hub id; its layers may be absent if a dump is given.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="The draft: Eyas's or another project's folder, also one that does not load.")] = None,
    dump: Annotated[Path | None, typer.Option(help="Hidden states: Eyas's or another project's.")] = None,
    data: Annotated[Path | None, typer.Option(help="Chats to replay: your own prompts (default: the dump's, else held-out ones).")] = None,
    engine: Annotated[str | None, typer.Option(help=_ENGINE)] = None,
    server: Annotated[str | None, typer.Option(help=_SERVER)] = None,
    metrics: Annotated[str | None, typer.Option(help=_METRICS)] = None,
    log: Annotated[Path | None, typer.Option(help="The server's log.")] = None,
    depth: Annotated[str, typer.Option(help=_DEPTH)] = "live",
    only: Annotated[str | None, typer.Option(help="Codes or kinds (letters) to test, with commas between.")] = None,
    skip: Annotated[str | None, typer.Option(help="Codes or kinds to leave out.")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes after which no further test begins.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of real text to replay.")] = 3000,
    num_draft_tokens: Annotated[int | None, typer.Option(help="K of the reported figures, where they do not say it.")] = None,
    temperature: Annotated[float | None, typer.Option(help="At which the reported figures were sampled; 0 is greedy.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be tested, and run nothing.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page to this file, too.")] = None,
    case: Annotated[Path | None, typer.Option(help="Keep this run in a case file (a folder), and test only what changed since.")] = None,
    note: Annotated[str, typer.Option(help="What is new about this run, for the case file.")] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Write the mended draft to --out and examine it again.")] = False,
    out: Annotated[Path | None, typer.Option(help="The folder for the mended draft.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Find out why a draft is accepted rarely: test every known cause on what is given, and measure the fix.

    Exit status 0 if nothing is wrong (or the draft is merely weak), 1 if a fault was found.
    """
    if context.invoked_subcommand is not None:
        return
    from eyas.doctor.exhibits import Exhibits, Options
    from eyas.doctor.hypothesis import DEPTHS
    from eyas.errors import UserError
    from eyas.files import check_file_writable

    if depth not in DEPTHS:
        raise UserError("--depth is not known", got=depth, allowed=", ".join(DEPTHS))
    _check_together(case=case, note=note, fix=fix, out=out)
    if html is not None:
        check_file_writable(html, "--html")  # the report would be lost after all the work
    exhibits = Exhibits(target, draft, dump, data, engine, _place(metrics), log, trust_remote_code, server)
    options = Options(DEPTHS[: DEPTHS.index(depth) + 1], _names(only), _names(skip), budget, rows, num_draft_tokens, temperature)
    if plan:
        _plan(exhibits, options, as_json)
    elif fix:
        assert out is not None
        _fix(exhibits, options, out, html, as_json)
    elif case is not None:
        _keep(exhibits, options, case, note, html, as_json)
    else:
        _examine(exhibits, options, html, as_json)


def _place(metrics: str | None) -> Path | str | None:
    """An address stays a text: as a path it would lose a slash."""
    if metrics is None or metrics.startswith(("http://", "https://")):
        return metrics
    return Path(metrics)


def _check_together(*, case: Path | None, note: str, fix: bool, out: Path | None) -> None:
    from eyas.errors import UserError

    if fix != (out is not None):
        raise UserError("--fix and --out go together", remedy="eyas doctor --target T --draft D --fix --out MENDED")
    if note and case is None:
        raise UserError("--note is for a case file", remedy="name one with --case")
    if fix and case is not None:
        raise UserError("--fix and --case do not go together", remedy="mend first, then examine the mended draft with --case")


def _examine(exhibits: Exhibits, options: Options, html: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from eyas.doctor.runner import examine
    from eyas.doctor.terminal import show

    found, exam = examine(exhibits, options)
    if html is not None:
        from eyas.doctor.slot_matrix import slot_matrix

        matrix = slot_matrix(exam) if "replay" in options.depths else None  # it runs the target
        exam.measured |= {} if matrix is None else {"slot_matrix": matrix}
        _write_page(html, found.to_json())
    if as_json:
        emit(found.to_json(), True)
    else:
        show(found, Console(highlight=False))
    raise typer.Exit(found.exit_status)


def _keep(exhibits: Exhibits, options: Options, folder: Path, note: str, html: Path | None, as_json: bool) -> None:
    from eyas.doctor.case import Case, examine_for
    from eyas.doctor.case_story import told

    value, event = examine_for(Case(folder), exhibits, options, note)
    _write_page(html, value)
    if as_json:
        emit({**value, "run": event.number, "moved": event.value["moved"]}, True)
    else:
        print("\n".join(told(event)))
    raise typer.Exit(1 if value["verdict"] == "fault" else 0)


def _fix(exhibits: Exhibits, options: Options, out: Path, html: Path | None, as_json: bool) -> None:
    from eyas.doctor.fix import fix

    report = fix(exhibits, options, out)
    last = report.before if report.after is None else report.after
    _write_page(html, last.to_json())
    if as_json:
        emit(report.to_json(), True)
    else:
        print("\n".join(_fix_lines(report)))
    raise typer.Exit(last.exit_status)


def _fix_lines(report: FixReport) -> list[str]:
    if report.after is None:
        return list(report.notes)
    lines = [f"before: {report.before.verdict}. {report.before.summary}", f"after:  {report.after.verdict}. {report.after.summary}"]
    lines += [f"mended: {', '.join(report.mended) or 'nothing'}", *([f"left:   {', '.join(report.left)}"] if report.left else [])]
    return [*lines, *(f"note:   {note}" for note in report.notes), "", report.diff]


def _write_page(path: Path | None, value: dict[str, Any]) -> None:
    if path is not None:
        from eyas.doctor.report_html import write_html

        write_html(path, value)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _plan(exhibits: Exhibits, options: Options, as_json: bool) -> None:
    from rich.console import Console

    from eyas.doctor.planning import plan
    from eyas.doctor.terminal import show_plan

    found = plan(exhibits, options)
    if as_json:
        fields = ("code", "kind", "depth", "claim", "test", "seconds")
        emit({"plan": [{**{name: getattr(item, name) for name in fields}, "missing": missing} for item, missing in found]}, True)
    else:
        show_plan(found, Console(highlight=False))
