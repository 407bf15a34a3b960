"""eyas train: a dump in, a draft out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode, emit


def command(
    target: TargetOption,
    dump: Annotated[Path, typer.Option(help="The dump to train on: the --out of eyas capture.")],
    out: Annotated[Path, typer.Option(help="The folder for the finished draft; OUT.training holds checkpoints until then.")],
    taps: Annotated[str | None, typer.Option(help="The states that the draft is meant to read; an error if the dump holds others.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; a killed run goes on bit for bit.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time to train; turned into steps after a timed warm-up.")] = None,
    ttt_steps: Annotated[int, typer.Option("--ttt-steps", help="Steps of the training-time test.")] = 3,
    draft_vocab_size: Annotated[
        int | None, typer.Option(help="Tokens that the draft knows; the default is 8192, or all of a smaller vocabulary.")
    ] = None,
    head: Annotated[str, typer.Option(help="llama, or mla: latent attention of the target's own sizes.")] = "llama",
    hidden_size: Annotated[
        int | None, typer.Option(help="Width of the draft; the default is the target's. Another width needs an embedding of its own.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule: warm-up, then cosine.")] = 4e-4,
    tokens_per_batch: Annotated[int, typer.Option(help="Positions a step, padding included.")] = 2048,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    seed: Annotated[int, typer.Option(help="Order of the batches and start of the random weights.")] = 0,
    norm_before_fc: Annotated[bool, typer.Option("--norm-before-fc", help="One RMSNorm over the concatenated states.")] = False,
    fc_norm: Annotated[bool, typer.Option("--fc-norm", help="One RMSNorm a state.")] = False,
    norm_before_residual: Annotated[bool, typer.Option("--norm-before-residual", help="Take the residual after the norm.")] = False,
    norm_output: Annotated[bool, typer.Option("--norm-output", help="Feed the normed state back.")] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Train an EAGLE-3 draft on a dump; a run that was killed goes on when the command is repeated.

    A run that finished is not trained further: a draft in --out is never overwritten.
    """
    import dataclasses

    from eyas.taps import parse_taps
    from eyas.targets.devices import dtype_name, resolve_device, resolve_dtype
    from eyas.train.job import Job, run_job
    from eyas.train.settings import TrainSettings

    settings = TrainSettings(
        steps=steps,
        minutes=minutes,
        ttt_steps=ttt_steps,
        tokens_per_batch=tokens_per_batch,
        learning_rate=learning_rate,
        seed=seed,
        dtype=dtype_name(resolve_dtype(dtype)),
        draft_vocab_size=draft_vocab_size,
        head=head,
        hidden_size=hidden_size,
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_before_residual=norm_before_residual,
        norm_output=norm_output,
        checkpoint_every=checkpoint_every,
    )
    job = Job(
        target=target,
        dump=dump,
        out=out,
        settings=settings,
        device=resolve_device(device),
        dtype=resolve_dtype(dtype),
        taps=None if taps is None else parse_taps(taps),
        trust_remote_code=trust_remote_code,
    )
    report = run_job(job)
    if as_json:
        emit({"draft": str(out), **dataclasses.asdict(report)}, True)
    else:
        print(f"draft written to {out}\n{report.text()}")
