"""eyas capture: parse, load, capture, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    RankTimeoutOption,
    TargetOption,
    TensorParallelOption,
    TrustRemoteCode,
    emit,
)


def command(
    target: TargetOption,
    data: Annotated[Path, typer.Option(help="Prepared chats (the --out of eyas data prepare), or a JSONL file of chats.")],
    taps: Annotated[str, typer.Option(help="The states that the draft will read, in order: embed, layer:K, boundary:B, final.")],
    out: Annotated[Path, typer.Option(help="The dump's folder; an unfinished one is gone on with.")],
    teacher: Annotated[str, typer.Option(help="The state that the labels are made of.")] = "final",
    batch_tokens: Annotated[int, typer.Option(help="Tokens a forward, padding included.")] = 4096,
    max_samples: Annotated[int | None, typer.Option(help="Capture only so many, of training and validation in proportion.")] = None,
    allow_wrong_teacher: Annotated[
        bool,
        typer.Option(
            "--allow-wrong-teacher", help="Capture although the teacher gives other tokens than the target; marks dump and draft."
        ),
    ] = False,
    allow_other_template: Annotated[
        bool,
        typer.Option(
            "--allow-other-template", help="Capture although the chats were prepared with another chat template than the target's."
        ),
    ] = False,
    pack: Annotated[bool, typer.Option("--pack", help="Lay the texts of a batch behind one another instead of padding them.")] = False,
    tp: TensorParallelOption = 1,
    cp: Annotated[int, typer.Option(help="Split the positions over so many ranks; torchrun starts --tp times --cp of them.")] = 1,
    cp_order: Annotated[str, typer.Option(help="Which positions a rank takes: zig-zag or round-robin.")] = "zig-zag",
    rank_timeout: RankTimeoutOption = 1800.0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Write a target's hidden states to a dump; a run that was killed goes on when the command is repeated."""
    from eyas.taps import Tap, parse_taps

    parsed, parsed_teacher = parse_taps(taps), Tap.parse(teacher)

    from eyas.capture.corpus import read_corpus
    from eyas.capture.job import CaptureSettings, asked_for
    from eyas.capture.runner import capture_to_dump
    from eyas.data.store_writer import check_place
    from eyas.provenance import command_line
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.layout import local_device, start_layout
    from eyas.targets.loading import load_config, load_target

    num_layers = int(load_config(target, trust_remote_code).get_text_config(decoder=True).num_hidden_layers)
    for tap in (*parsed, parsed_teacher):
        tap.check(num_layers)
    settings = CaptureSettings(
        taps=parsed,
        teacher=parsed_teacher,
        max_batch_tokens=batch_tokens,
        max_samples=max_samples,
        allow_wrong_teacher=allow_wrong_teacher,
        packed=pack,
        command=command_line(["eyas", *sys.argv[1:]]),
    )
    where, number_type = resolve_device(local_device(device)), resolve_dtype(dtype)
    with start_layout(tp, cp, cp_order, where, rank_timeout) as layout:
        layout.on_rank_0(lambda: check_place(out, asked_for(settings, where, number_type)))
        corpus = layout.on_rank_0(lambda: read_corpus(data, target, trust_remote_code, other_template=allow_other_template))
        loaded = load_target(target, device=where, dtype=number_type, trust_remote_code=trust_remote_code, layout=layout)
        report = capture_to_dump(loaded, corpus, settings, out)
        if layout.writes:
            if as_json:
                emit(report.to_json(), True)
            else:
                print(report.text())
