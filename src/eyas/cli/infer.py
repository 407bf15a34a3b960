"""eyas wiring infer: the wiring that a draft was trained with, recovered from its accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode, emit

if TYPE_CHECKING:
    from eyas.evaluate.infer.infer import InferReport
    from eyas.taps import Tap


def infer(
    target: TargetOption,
    draft: Annotated[Path, typer.Option(help="The draft's folder; the taps that it declares are not looked at.")],
    data: Annotated[Path, typer.Option(help="Chats that the target answered: a folder of eyas data prepare, or a JSONL file.")],
    rows: Annotated[int, typer.Option(help="Rows to measure on; a verdict needs at least 2000.")] = 6000,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "fp32",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Find out by accuracy what a draft was trained to read: taps and their order, then pairing, norms and RoPE.

    Says "undecided" where another choice is not significantly worse. A constant RoPE offset changes nothing and is not looked for.
    """
    from eyas.capture.corpus import read_corpus
    from eyas.capture.trace import Trace, check_identity
    from eyas.draft.checkpoint import load_draft, read_wiring
    from eyas.errors import UserError
    from eyas.evaluate.infer.infer import InferSettings, infer_wiring
    from eyas.progress import console
    from eyas.targets.describe import target_wiring
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.loading import load_target
    from eyas.wiring import require_match

    if rows < 1:
        raise UserError("--rows must be at least 1", got=rows)
    where, number_type = resolve_device(device), resolve_dtype(dtype)
    require_match(read_wiring(draft), "the draft", target_wiring(target, trust_remote_code), "the target")
    corpus = read_corpus(data, target, trust_remote_code)
    loaded = load_target(target, device=where, dtype=number_type, trust_remote_code=trust_remote_code)
    held = load_draft(draft, loaded, number_type, taps_known=False)
    if held.trace_file is not None:
        check_identity(loaded, Trace.load(held.trace_file), f"the draft {held.name}")
    else:
        console.print("the draft brings no trace, so it is not known whether this is the target that it was trained on", highlight=False)
    corpus.check(loaded.vocab_size, loaded.max_positions)
    report = infer_wiring(loaded, held.draft, corpus.texts, InferSettings(num_rows=rows))
    if as_json:
        emit({**report.to_json(), "declared": [str(tap) for tap in held.wiring.taps]}, True)
    else:
        print("\n".join(_lines(report, held.wiring.taps)))


def _lines(report: InferReport, declared: tuple[Tap, ...]) -> list[str]:
    from eyas.taps import format_taps

    lines = [f"{100 * item.accuracy:6.2f} %  {format_taps(item.taps)}" for item in report.candidates[: report.settings.num_candidates]]
    for item in report.others:
        values = ", ".join(f"{name} {100 * accuracy:.2f} %" for name, accuracy in item.accuracies.items())
        other = "" if item.best == item.declared else f", where the draft's config says {item.declared}"
        lines.append(f"{item.name}: {item.best}{other}{'' if item.decided else ' (undecided)'}; {values}")
    lines.append(_declared(declared, report))
    lines.append(f"{'decided' if report.decided else 'undecided'}: {report.reason}")
    lines.append(f"{report.num_rows} rows, {report.num_tried} choices tried, {report.search_seconds:.1f} s after the capture")
    return lines


def _declared(declared: tuple[Tap, ...], report: InferReport) -> str:
    """Only what is decided is recommended; what is not says what would decide it."""
    from eyas.taps import format_taps

    best = report.best.taps
    if report.decided:
        if not declared:
            return f"declared: nothing; to use the draft, import it again with --taps {format_taps(best)}"
        return f"declared: {format_taps(declared)}" + ("" if declared == best else ", which is not the best")
    more = "more rows (--rows, and more chats), or a draft trained longer, may decide it"
    if not declared:
        return f"declared: nothing; {more}; until then no taps can be recommended"
    return f"declared: {format_taps(declared)}; {more}"
