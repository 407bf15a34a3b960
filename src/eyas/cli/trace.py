"""eyas trace: a target's fingerprint, and which of its states a capture really holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode, emit

if TYPE_CHECKING:
    from eyas.capture.check import CheckReport
    from eyas.capture.fingerprint import Trace
    from eyas.taps import Tap

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Record a target's fingerprint; say what a capture holds.")


@app.command()
def record(
    target: TargetOption,
    out: Annotated[Path, typer.Option(help="The trace's file.")],
    prompt_out: Annotated[Path | None, typer.Option(help="Also write the token ids to capture elsewhere, as a JSON list.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Record the fingerprint of every state of a target: a fixed text, a small sketch of each state at each position."""
    from eyas.capture.trace import record_trace
    from eyas.files import check_folder_writable, write_json
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.loading import load_target

    for file in (out, prompt_out):
        if file is not None:
            check_folder_writable(file.parent)
    loaded = load_target(target, device=resolve_device(device), dtype=resolve_dtype(dtype), trust_remote_code=trust_remote_code)
    trace = record_trace(loaded)
    trace.save(out)
    if prompt_out is not None:
        write_json(prompt_out, trace.token_ids.tolist())
    emit(
        {
            "out": str(out),
            "target": loaded.name,
            "states": len(trace.state_names),
            "positions": len(trace.token_ids),
            "bytes": out.stat().st_size,
            "hash": trace.hash(),
        },
        as_json,
    )


@app.command()
def check(
    trace: Annotated[Path, typer.Argument(metavar="TRACE_OR_DRAFT", help="A trace's file, or a draft or dump that carries one.")],
    states: Annotated[
        list[Path], typer.Argument(metavar="STATES", help="A dump, or safetensors with token_ids and hidden_states; several are ranks.")
    ],
    target: Annotated[str | None, typer.Option(help="The target itself: then the states may be of any text.")] = None,
    taps: Annotated[str | None, typer.Option(help="What the slots should hold; by default what the draft or dump says.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Say for each slot of captured states which of the target's states it really holds, and what was done to it.

    Exit status 1 if a slot does not hold what it should.
    """
    from eyas.capture.check import check_captures, with_exchanges
    from eyas.capture.reference import reference_of_target, reference_of_trace
    from eyas.formats.dumps.states import read_capture
    from eyas.taps import parse_taps

    recorded, expected = _read_trace(trace)
    expected = parse_taps(taps) if taps is not None else expected
    for tap in expected or ():
        tap.check(recorded.num_layers)
    wanted = recorded.token_ids.tolist() if target is None else None
    read = [read_capture(path, recorded.hidden_size, len(expected) if expected else None, wanted) for path in states]
    captures = [capture for capture, _ in read]
    expected = expected if expected is not None else read[0][1]
    if target is None:
        reference = reference_of_trace(recorded, captures[0].token_ids, str(states[0]))
    else:
        from eyas.capture.trace import check_identity
        from eyas.targets.devices import resolve_device, resolve_dtype
        from eyas.targets.loading import load_target

        loaded = load_target(target, device=resolve_device(device), dtype=resolve_dtype(dtype), trust_remote_code=trust_remote_code)
        check_identity(loaded, recorded, str(trace))
        reference = reference_of_target(loaded, captures[0].token_ids, captures[0].width, str(states[0]))
    report = with_exchanges(check_captures(reference, captures, expected))
    if expected is not None:
        _refuse_spare(report, expected, recorded.num_layers, str(states[0]))
    if as_json:
        emit(report.to_json(), True)
    else:
        print("\n".join([*(slot.text() for slot in report.slots), "ok" if report.ok else "not ok"]), file=sys.stdout)
    raise typer.Exit(0 if report.ok else 1)


def _refuse_spare(report: CheckReport, expected: tuple[Tap, ...], num_layers: int, where: str) -> None:
    """One state may stand behind those that the draft reads: the target's last one, which labels come from."""
    from eyas.errors import UserError
    from eyas.taps import format_taps

    spare = report.slots[len(expected) :]
    if len(spare) > 1 or any(slot.ok and slot.found not in ("final", f"layer:{num_layers - 1}") for slot in spare):
        raise UserError(
            f"{where} holds more states than are expected",
            got="\n           ".join(slot.text() for slot in report.slots),
            allowed=f"{format_taps(expected)}, and behind them the target's last state at most",
            remedy="name every slot with --taps, in order",
        )


def _read_trace(path: Path) -> tuple[Trace, tuple[Tap, ...] | None]:
    """The trace, and the taps of the draft or dump that it came with."""
    from eyas.capture.fingerprint import Trace
    from eyas.cli.wiring import read_wiring
    from eyas.errors import UserError

    if not path.exists():
        raise UserError(f"there is no trace, draft or dump {path}", remedy="record a trace: eyas trace record --target ... --out FILE")
    if path.is_file():
        return Trace.load(path), None
    kind, wiring, trace_file = read_wiring(str(path), trust_remote_code=False)
    if trace_file is None:
        raise UserError(f"the {kind} {path} carries no trace", remedy="record one: eyas trace record --target ... --out FILE")
    return Trace.load(trace_file), wiring.taps or None
