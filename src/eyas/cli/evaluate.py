"""eyas evaluate: a draft on held-out chats, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode


def command(
    target: TargetOption,
    draft: Annotated[Path, typer.Option(help="The draft's folder.")],
    chats: Annotated[Path, typer.Option(help="Held-out chats, JSON Lines; each is answered anew from its last user turn on.")],
    num_draft_tokens: Annotated[int, typer.Option(help="K: tokens proposed a round, as vLLM counts (SGLang counts one more).")] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, stop token included.")] = 192,
    max_chats: Annotated[int | None, typer.Option(help="Use only so many chats, spread evenly over the file.")] = None,
    batch: Annotated[int, typer.Option(help="Chats decoded at once; tokens/s are always timed one by one.")] = 16,
    as_if: Annotated[str | None, typer.Option(help="Feed the draft these states instead of its own, on purpose.")] = None,
    predict_only: Annotated[bool, typer.Option("--predict-only", help="Leave out decoding: no measured figures, no tokens/s.")] = False,
    lossless_prompts: Annotated[
        int, typer.Option(help="Prompts on which greedy output is held against transformers' in fp32; 0 for none.")
    ] = 4,
    out: Annotated[Path | None, typer.Option(help="A folder for report.json and report.png.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Accuracy and acceptance of a draft on held-out chats: predicted by the walk, measured by decoding, side by side.

    Exit status 1 if prediction and measurement part without a proven tie (fp32) or by more than 3 % (bf16, over at least
    2,000 rounds), or if greedy output in fp32 is not the target's own.
    """
    import time

    from rich.console import Console

    from eyas.cli.options import emit
    from eyas.evaluate.job import Job, run_job
    from eyas.evaluate.plot import check_can_plot, write_report
    from eyas.evaluate.report import peak_rss_gib, show, to_json
    from eyas.evaluate.settings import EvaluateSettings
    from eyas.files import check_folder_writable
    from eyas.progress import console
    from eyas.taps import parse_taps
    from eyas.targets.devices import resolve_device, resolve_dtype

    started = time.perf_counter()
    if out is not None:
        check_can_plot()
        check_folder_writable(out)
    job = Job(
        target=target,
        draft=draft,
        chats=chats,
        settings=EvaluateSettings(num_draft_tokens, max_new_tokens, batch, measure=not predict_only),
        device=resolve_device(device),
        dtype=resolve_dtype(dtype),
        trust_remote_code=trust_remote_code,
        max_chats=max_chats,
        lossless_prompts=lossless_prompts,
        as_if=None if as_if is None else parse_taps(as_if),
    )
    result = run_job(job)
    value = to_json(result.evaluation, result.lossless)
    value |= {"warnings": list(result.warnings), "wall_seconds": time.perf_counter() - started, "peak_rss_gib": peak_rss_gib()}
    if out is not None:
        write_report(out, value, result.evaluation, result.target_name)
    title = f"{draft} on {result.target_name}, K = {num_draft_tokens}, {result.evaluation.dtype}"
    show(console if as_json else Console(), result.evaluation, result.lossless, title)
    if as_json:
        emit(value, as_json)
    if not result.passed:
        raise typer.Exit(1)
