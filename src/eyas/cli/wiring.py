"""eyas wiring: what an artefact was made for, and how two of them differ."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli.infer import infer
from eyas.cli.options import JsonOption, TrustRemoteCode, emit
from eyas.cli.translate import translate

if TYPE_CHECKING:
    from eyas.capture.trace import IdentityReport
    from eyas.wiring import Wiring

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show what an artefact was made for, and how two differ.")

_OF_TARGET = ("num_target_layers", "target_hidden_size", "target_vocab_size", "tokenizer_hash")  # what every target's files say

PathArgument = Annotated[str, typer.Argument(help="A target's folder or hub id, a dump, a draft, or an export of one.")]


@app.command()
def show(path: PathArgument, trust_remote_code: TrustRemoteCode = False, as_json: JsonOption = False) -> None:
    """Show the wiring of a target, dump or draft: every field by its class, and which state goes into which slot."""
    kind, wiring, trace_file = read_wiring(path, trust_remote_code)
    if as_json:
        emit(
            {"kind": kind, "path": path, "wiring": wiring.to_json(), "wiring_hash": wiring.hash(), "has_trace": trace_file is not None},
            True,
        )
        return
    from rich.console import Console

    console = Console(file=sys.stdout)
    console.print(_table(f"{kind} {path}", wiring))
    console.print(diagram(wiring), markup=False, highlight=False)


@app.command()
def diff(left: PathArgument, right: PathArgument, trust_remote_code: TrustRemoteCode = False, as_json: JsonOption = False) -> None:
    """Say in words how two artefacts differ. Exit status 1 if a field that must match differs, or the traces are of two models."""
    left_kind, left_wiring, left_trace = read_wiring(left, trust_remote_code)
    right_kind, right_wiring, right_trace = read_wiring(right, trust_remote_code)
    names = (left_kind, right_kind) if left_kind != right_kind else (left, right)
    differences = left_wiring.diff(right_wiring)
    identity = _compare_traces(left_trace, right_trace)
    fatal = [item for item in differences if item.field_class == "must match"]
    same = not fatal and (identity is None or identity.same)
    unknown = _not_compared((left_kind, left_wiring), (right_kind, right_wiring))
    if as_json:
        from dataclasses import asdict

        trace = asdict(identity) if identity else None
        emit({"match": same, "differences": [asdict(item) for item in differences], "not_compared": unknown, "trace": trace}, True)
    else:
        for item in differences:
            print(item.text(*names) + "\n")
        print(_verdict(identity, (left, left_kind, left_trace), (right, right_kind, right_trace)))
        print(_conclusion(same, bool(differences), identity is not None, unknown))
    raise typer.Exit(0 if same else 1)


app.command()(translate)
app.command()(infer)


def read_wiring(path: str, trust_remote_code: bool) -> tuple[str, Wiring, Path | None]:
    """The kind of artefact, its wiring and its trace's file. Raises UserError for anything that has no wiring."""
    from eyas.data.store import TRACE, is_dump, read_manifest
    from eyas.draft.checkpoint import is_draft
    from eyas.draft.checkpoint import read_wiring as read_draft_wiring
    from eyas.errors import UserError
    from eyas.files import read_small_json
    from eyas.formats.registry import FORMATS
    from eyas.formats.sidecar import TRACE as TRACE_BESIDE
    from eyas.formats.sidecar import read_sidecar
    from eyas.targets.describe import target_wiring
    from eyas.wiring import Wiring

    folder = Path(path)
    trace = folder / TRACE if (folder / TRACE).is_file() else None
    if is_draft(folder):
        return "draft", read_draft_wiring(folder), trace
    if is_dump(folder):
        return "dump", Wiring.from_json(read_manifest(folder)["wiring"], path), trace
    sidecar = read_sidecar(folder, list(FORMATS)) if folder.is_dir() else None
    if sidecar is not None:
        beside = folder / TRACE_BESIDE
        return "export", sidecar.wiring, beside if beside.is_file() else None
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{path} is neither a target, a dump nor a draft",
            got=sorted(item.name for item in folder.iterdir())[:5] or "an empty folder",
            allowed="a folder with config.json (a target or a draft) or manifest.json (a dump)",
            remedy="check the path: it is often a folder below or above; a dump of another project is read by eyas import",
        )
    if (folder / "config.json").is_file():
        config = read_small_json(folder / "config.json", "the target's config.json")
        if {"draft_vocab_size", "speculators_config"} & config.keys():
            raise UserError(f"{path} is a draft of another project", remedy=f"import it first: eyas import {path} --out DRAFT")
    return "target", target_wiring(path, trust_remote_code), None


def _compare_traces(left: Path | None, right: Path | None) -> IdentityReport | None:
    if left is None or right is None:
        return None
    from eyas.capture.trace import Trace, compare_traces

    return compare_traces(Trace.load(left), Trace.load(right))


_Side = tuple[str, str, Path | None]  # path, kind, trace


def _verdict(identity: IdentityReport | None, *sides: _Side) -> str:
    without = [f"the {kind} {path}" for path, kind, trace in sides if trace is None]
    if without:
        return f"trace: not compared, {' and '.join(without)} {'has' if len(without) == 1 else 'have'} none{_what_tells(sides)}"
    if identity is None:
        return "trace: not comparable, recorded on other tokens or another architecture"
    return f"trace: {'the same model' if identity.same else 'another model'}; {identity.text()}"


def _what_tells(sides: tuple[_Side, ...]) -> str:
    """A target's files hold no trace: it must be run."""
    of = {kind: path for path, kind, _ in sides}
    if "target" in of and "draft" in of:
        return f"; what tells: eyas doctor --target {of['target']} --draft {of['draft']}, or eyas evaluate"
    if "target" in of and "dump" in of:
        return f"; what tells: eyas doctor --target {of['target']} --dump {of['dump']}"
    return ""


def _not_compared(left: tuple[str, Wiring], right: tuple[str, Wiring]) -> list[str]:
    """Fields that both kinds of artefact should state, but one of these two does not."""
    import dataclasses

    def stated(kind: str) -> set[str]:
        if kind in ("target", "dump"):
            return {*_OF_TARGET, *(("taps", "pairing") if kind == "dump" else ())}
        return {item.name for item in dataclasses.fields(left[1]) if item.metadata["class"] == "must match"}

    both = stated(left[0]) & stated(right[0])
    return sorted(name for name in both if any(getattr(wiring, name) in (None, ()) for _, wiring in (left, right)))


def _conclusion(same: bool, differs: bool, is_identity_known: bool, unknown: list[str]) -> str:
    if not same:
        return "they do not match"
    if unknown:
        return f"nothing that could be compared differs; could not be compared, since one side does not state it: {', '.join(unknown)}"
    words = "they match in all fields that must" if differs else "they match"
    return words if is_identity_known else f"{words}; whether the weights of the target are the same, only two traces tell"


def _table(title: str, wiring: Wiring) -> Any:
    import dataclasses

    from rich.table import Table

    from eyas.wiring import shown

    table = Table("field", "value", title=title, title_justify="left", show_lines=False)
    for field_class in ("must match", "compared in numbers", "recorded"):
        table.add_section()
        table.add_row(f"[bold]{field_class}[/bold]", "")
        for item in dataclasses.fields(wiring):
            value = getattr(wiring, item.name)
            if item.metadata["class"] == field_class:
                table.add_row(f"  {item.name}", "[dim]not stated[/dim]" if value in (None, ()) else shown(value).replace("[", "\\["))
    return table


def diagram(wiring: Wiring) -> str:
    """Which state goes into which slot of the draft's fc, and where the labels come from."""
    if not wiring.taps:
        if wiring.rope_inv_freq is not None:
            return "which states the draft reads is not known: eyas wiring infer finds it out"
        return "a target alone: taps are chosen by eyas capture --taps"
    width, size = max(len(str(tap)) for tap in wiring.taps), wiring.target_hidden_size or 0
    lines = []
    for slot, tap in enumerate(wiring.taps):
        meaning = "after the final norm" if tap.is_final else "embedding output" if tap.boundary == 0 else f"enters layer {tap.boundary}"
        if tap.boundary == wiring.num_target_layers:
            meaning = "leaves the last layer, before the final norm"
        lines.append(f"  {tap!s:<{width}}  ->  fc columns {slot * size} to {(slot + 1) * size - 1}  ({meaning})")
    if wiring.teacher is not None:
        norm = "" if wiring.teacher.is_final else " -> final norm"
        verified = {True: "gives the target's own tokens", False: "does NOT give the target's own tokens", None: "not checked yet"}
        lines.append(f"  labels: {wiring.teacher}{norm} -> lm_head  ({verified[wiring.teacher_verified]})")
    lines.append(f"  {wiring.pairing}")
    return "\n".join(lines)
