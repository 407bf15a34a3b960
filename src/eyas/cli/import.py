"""eyas import: another project's draft or dump in, as an Eyas draft or dump."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TrustRemoteCode
from eyas.errors import UserError


def command(
    path: Annotated[Path, typer.Argument(help="A draft's folder, or a dump's folder or file, of another project.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for the Eyas draft or dump.")],
    source: Annotated[
        str, typer.Option("--from", help="The project that wrote it (docs/formats.md); auto tells it from the files.")
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option("--target", help="The target, a folder or a hub id. A dump needs it; of a draft it fills in what it knows."),
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            "--taps",
            help="The states, in order, if the files do not say: embed,layer:2,layer:14; or unknown, for eyas wiring infer to find out.",
        ),
    ] = None,
    convention: Annotated[
        str | None,
        typer.Option("--convention", help="What layer id i means there: boundary (what enters layer i) or output (what leaves it)."),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Read a draft or a dump of another project. What its files do not say is asked for, or assumed and said.

    --device and --dtype are for a dump, whose states are compared with the target's own.
    """
    from eyas.cli.export import show
    from eyas.data.store_writer import check_place
    from eyas.formats.dumps import import_dump, is_foreign_dump
    from eyas.formats.importing import import_draft
    from eyas.taps import parse_taps
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.loading import load_target

    named = () if taps == "unknown" else parse_taps(taps) if taps is not None else None
    if is_foreign_dump(path) is None:
        draft = import_draft(
            path, out, source=source, taps=named, convention=convention, target=target, trust_remote_code=trust_remote_code
        )
        show(draft.to_json(), as_json)
        return
    if target is None:
        raise UserError(f"{path} is a dump, whose states are compared with the target's own", remedy="give --target")
    if named == ():
        raise UserError("--taps unknown is for drafts: the states of a dump are compared with the target's own", remedy="leave --taps out")
    check_place(out, {})
    loaded = load_target(target, device=resolve_device(device), dtype=resolve_dtype(dtype), trust_remote_code=trust_remote_code)
    show(import_dump(path, target=loaded, out=out, taps=named, convention=convention, source=source).to_json(), as_json)
