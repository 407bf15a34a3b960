"""One training run, from names of folders to a draft on disk: what does not fit is refused before a weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.capture.trace import Trace, check_identity
from eyas.data.store import Dump
from eyas.errors import UserError
from eyas.progress import console
from eyas.taps import Tap
from eyas.targets.describe import target_wiring
from eyas.targets.loading import load_config, load_target
from eyas.train.loop import Trainer, check_place, check_request
from eyas.train.report import TrainReport
from eyas.train.settings import TrainSettings
from eyas.wiring import Wiring, require_match


@dataclass(frozen=True)
class Job:
    """`target`: a folder or a hub id. `taps`: what the draft is meant to read, if the dump is not to decide it alone."""

    target: str
    dump: Path
    out: Path
    settings: TrainSettings
    device: torch.device
    dtype: torch.dtype
    taps: tuple[Tap, ...] | None = None
    trust_remote_code: bool = False


def run_job(job: Job) -> TrainReport:
    """Train, or go on where a run of the same job was killed.

    Raises:
        UserError: settings that cannot train, a draft in `out`, a damaged dump, a dump of another target or of other taps.
    """
    job.settings.check()
    check_place(job.out)
    dump = Dump.open(job.dump)
    dump.verify()  # a flipped bit, or a shard of another dump, would be learnt from in silence
    _compare_wirings(job, dump)
    if dump.wrong_teacher:
        console.print(f"warning: the teacher of {job.dump}, {dump.wiring.teacher}, does not give the target's own tokens", highlight=False)
    trace = _own_trace(dump)
    target = load_target(job.target, device=job.device, dtype=job.dtype, trust_remote_code=job.trust_remote_code)
    check_identity(target, trace, "the dump")
    return Trainer(target, dump, job.settings, job.out).run()


def _compare_wirings(job: Job, dump: Dump) -> None:
    warnings = require_match(dump.wiring, "the dump", target_wiring(job.target, job.trust_remote_code), "the target")
    if job.taps is not None:
        require_match(dump.wiring, "the dump", Wiring(taps=job.taps), "--taps")
    check_request(dump, job.settings, load_config(job.target, job.trust_remote_code).get_text_config(decoder=True))
    for difference in warnings:
        if difference.field_class == "recorded":  # what is compared in numbers is the trace's business
            console.print(f"warning: {difference.text('the dump', 'the target')}", markup=False, highlight=False)


def _own_trace(dump: Dump) -> Trace:
    """The dump's fingerprint of its target. Raises UserError if it is gone, or not the one that the wiring names."""
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
