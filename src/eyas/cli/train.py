"""eyas train: a dump in, a draft out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode, emit

if TYPE_CHECKING:
    from eyas.capture.trace import Trace
    from eyas.data.store import Dump


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

    from eyas.capture.trace import check_identity
    from eyas.data.store import Dump
    from eyas.progress import console
    from eyas.taps import parse_taps
    from eyas.targets.describe import target_wiring
    from eyas.targets.devices import dtype_name, resolve_device, resolve_dtype
    from eyas.targets.loading import load_config, load_target
    from eyas.train.loop import Trainer, check_place, check_request
    from eyas.train.settings import TrainSettings
    from eyas.wiring import Wiring, require_match

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
    settings.check()
    where, number_type = resolve_device(device), resolve_dtype(dtype)
    check_place(out)
    opened = Dump.open(dump)
    opened.verify()  # a flipped bit, or a shard of another dump, would be learnt from in silence
    wanted = target_wiring(target, trust_remote_code)
    warnings = require_match(opened.wiring, "the dump", wanted, "the target")
    if taps is not None:
        require_match(opened.wiring, "the dump", Wiring(taps=parse_taps(taps)), "--taps")
    check_request(opened, settings, load_config(target, trust_remote_code).get_text_config(decoder=True))
    for difference in warnings:
        if difference.field_class == "recorded":  # what is compared in numbers is the trace's business, below
            console.print(f"warning: {difference.text('the dump', 'the target')}", markup=False, highlight=False)
    if opened.wrong_teacher:
        console.print(f"warning: the teacher of {dump}, {opened.wiring.teacher}, does not give the target's own tokens", highlight=False)
    trace = _own_trace(opened)
    loaded = load_target(target, device=where, dtype=number_type, trust_remote_code=trust_remote_code)
    check_identity(loaded, trace, "the dump")
    report = Trainer(loaded, opened, settings, out).run()
    if as_json:
        emit({"draft": str(out), **dataclasses.asdict(report)}, True)
    else:
        print(f"draft written to {out}\n{report.text()}")


def _own_trace(dump: Dump) -> Trace:
    """The dump's fingerprint of its target. Raises UserError if it is gone, or not the one that the wiring names."""
    from eyas.capture.trace import Trace
    from eyas.errors import UserError

    if dump.trace_file is None:
        raise UserError(f"{dump.path} has lost its trace", remedy="copy the dump again, whole")
    trace = Trace.load(dump.trace_file)
    if trace.hash() != dump.wiring.trace_hash:
        raise UserError(
            f"{dump.trace_file} is not the trace of this dump",
            got=trace.hash(),
            allowed=dump.wiring.trace_hash,
            remedy="copy the dump again, whole; do not mix files of several dumps",
        )
    return trace
