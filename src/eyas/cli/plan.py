"""eyas plan: disk, memory, network and hours of a run that has not been paid for yet."""

from __future__ import annotations

from typing import Annotated

import typer

from eyas.cli.options import JsonOption, emit


def command(
    target: Annotated[str, typer.Option(help="A config.json, a folder with one, or a name: Kimi-K2.5, DeepSeek-V3, Llama-3.1-8B, ...")],
    gpus: Annotated[str, typer.Option(help="How many of which: 8xH200.")],
    tokens: Annotated[str, typer.Option(help="Tokens to capture and train on, prompts included: 100M, 6B.")],
    length: Annotated[str, typer.Option(help="Tokens of the longest text; it sets what is in flight at once.")] = "4096",
    num_taps: Annotated[int, typer.Option(help="States that the draft reads; one more is kept for the labels.")] = 3,
    draft_vocab_size: Annotated[int | None, typer.Option(help="Tokens that the draft knows; 8192 unless said, as in eyas train.")] = None,
    ttt_steps: Annotated[int, typer.Option("--ttt-steps", help="Steps of the training-time test.")] = 3,
    epochs: Annotated[int, typer.Option(help="Times that training goes over the tokens.")] = 1,
    layout: Annotated[str | None, typer.Option(help="Plan with this one only: tp=8,cp=2,ep=8.")] = None,
    weight_bits: Annotated[int | None, typer.Option(help="Bits a weight of the layers; what the config says unless said.")] = None,
    capture_rate: Annotated[float | None, typer.Option(help="Tokens a second and GPU of capture, as you measured it.")] = None,
    train_rate: Annotated[float | None, typer.Option(help="Tokens a second and GPU of training, as you measured it.")] = None,
    disk_rate: Annotated[str | None, typer.Option(help="What the dump's disk writes and reads: 5GB/s.")] = None,
    network_rate: Annotated[str | None, typer.Option(help="What goes from capturing to training GPUs: 50GB/s.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Reckon what a run would take: disk, memory of each GPU, network, hours; from config.json alone, no weights or GPU needed.

    Exit status 1 if the target does not fit the GPUs. The formulae are in docs/scale.md.
    """
    from eyas.plan.config import read_config
    from eyas.plan.gpus import Fleet
    from eyas.plan.plan import Request, make_plan
    from eyas.plan.show import show
    from eyas.plan.units import parse_count, parse_rate

    request = Request(
        fleet=Fleet.parse(gpus),
        tokens=parse_count(tokens, "--tokens"),
        length=parse_count(length, "--length"),
        num_taps=num_taps,
        draft_vocab_size=draft_vocab_size,
        ttt_steps=ttt_steps,
        epochs=epochs,
        capture_rate=capture_rate,
        train_rate=train_rate,
        disk_rate=parse_rate(disk_rate, "--disk-rate") if disk_rate else None,
        network_rate=parse_rate(network_rate, "--network-rate") if network_rate else None,
        layout=layout,
        weight_bits=weight_bits,
    )
    plan = make_plan(read_config(target), request)
    if as_json:
        emit(plan.to_json(), True)
    else:
        show(plan)
    raise typer.Exit(0 if plan.chosen else 1)
