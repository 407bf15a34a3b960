"""What one examination knows: the exhibits, opened as deep as a test needs, and what was found so far.

Each part is opened once and when it is first asked for, so that a test pays for nothing that it does not use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import Fault, Slot
from eyas.doctor.opening.draft import DraftFiles, open_draft
from eyas.doctor.opening.dump import DumpFiles, open_dump
from eyas.doctor.opening.target import TargetFiles, cached_folder, open_target

if TYPE_CHECKING:
    import torch

    from eyas.capture.check import SlotVerdict
    from eyas.capture.plan import Text
    from eyas.doctor.replay.bench import Bench
    from eyas.doctor.replay.own_runs import OwnRun
    from eyas.doctor.replay.samples import RawSample
    from eyas.doctor.server.asking import Asking
    from eyas.doctor.server.judging import Judge
    from eyas.doctor.server.tally import Tally
    from eyas.targets.target import Target


_NEEDED = {"readings": "needs --server, --metrics or --log", "figures": "needs --metrics or --log"}


class Examination:
    """`faults` are those confirmed so far. `broken`: codes whose test raised. `notes`: what the user should know beside them.

    `measured`: figures for the report. `nearest_rows` [V]: which of the target's tokens each row of lm_head
    is most like, where the map says others.
    """

    def __init__(self, exhibits: Exhibits, options: Options) -> None:
        self.exhibits, self.options = exhibits, options
        self.faults: list[Fault] = []
        self.broken: list[str] = []
        self.notes: list[str] = []
        self.measured: dict[str, Any] = {}
        self.nearest_rows: torch.Tensor | None = None
        self.slots: tuple[Slot, ...] = ()

    # -- configs and headers -------------------------------------------------------------------------------------

    @cached_property
    def draft(self) -> DraftFiles | None:
        return None if self.exhibits.draft is None else open_draft(self.exhibits.draft)

    @cached_property
    def dump(self) -> DumpFiles | None:
        return None if self.exhibits.dump is None else open_dump(self.exhibits.dump)

    @cached_property
    def target(self) -> TargetFiles | None:
        if self.exhibits.target is None:
            return None
        folder = self.exhibits.target_folder or cached_folder(self.exhibits.target)
        return None if folder is None else open_target(folder)

    # -- tensors -------------------------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The draft's tensors by Eyas's names, as far as they can be read."""
        from eyas.doctor.opening.tensors import draft_tensors

        return {} if self.draft is None else draft_tensors(self.draft)

    @cached_property
    def samples(self) -> tuple[RawSample, ...]:
        """Samples of the dump, in the order of its shards, as far as they can be read: all of a small one, some of a large one."""
        from eyas.doctor.replay.samples import read_samples

        return () if self.exhibits.dump is None else read_samples(self)

    # -- models --------------------------------------------------------------------------------------------------

    @cached_property
    def loaded_target(self) -> Target | None:
        """The whole target; None if it was not given or its layers are not there. See `why_no_target`."""
        from eyas.doctor.replay.loading import load_whole

        return load_whole(self)

    @cached_property
    def parts(self) -> Target | None:
        """The target, or at least its embedding, final norm and head."""
        from eyas.doctor.replay.loading import load_parts

        return self.loaded_target or load_parts(self)

    @cached_property
    def slot_verdicts(self) -> tuple[SlotVerdict, ...] | str:
        """Which state of the target each slot of the dump holds; in words, why that cannot be said. Needs the whole target."""
        from eyas.doctor.replay.dump_slots import read_slots

        return read_slots(self)

    @cached_property
    def own_runs(self) -> tuple[OwnRun, ...]:
        """The whole target over some of the dump's texts; none without it."""
        from eyas.doctor.replay.own_runs import run_samples

        return () if self.loaded_target is None else run_samples(self, self.loaded_target)

    @cached_property
    def bench(self) -> Bench | None:
        """Draft and real text, ready to measure; None if that cannot be had. See `why_no_bench`."""
        from eyas.doctor.replay.bench import set_up

        return set_up(self)

    @cached_property
    def texts(self) -> list[Text]:
        """What is replayed where the target's layers are there. Raises UserError if there is none."""
        from eyas.doctor.replay.texts import texts_of

        assert self.loaded_target is not None
        return texts_of(self, self.loaded_target)

    why_no_target = "no target was given"
    target_unfit = False  # whether its layers are there and were refused
    why_no_bench = "a replay needs --draft and --target"

    # -- a running server ----------------------------------------------------------------------------------------

    def open_remote(self) -> None:
        """Ask what lies at addresses for the first time. Raises UserError if nothing of use answers there."""
        if self.asking is not None:
            about, count = self.asking.server.about, self.options.num_draft_tokens
            if "live" in self.options.depths:
                self.asking.open()
            self.notes.append(f"--server is {about.name}, serving {about.model}")
            if self.exhibits.engine is None and about.judged is not None:
                self.exhibits = dataclasses.replace(self.exhibits, engine=about.judged)
                self.notes.append(f"judged by the tables as --engine {about.judged}, which is what the server says it is")
            if count is not None and self.asking.num_draft_tokens not in (None, count):
                self.notes.append(f"--num-draft-tokens is {count}, and the server proposes {self.asking.num_draft_tokens}")
        if isinstance(self.exhibits.metrics, str):
            _ = self.metrics_text

    @cached_property
    def metrics_text(self) -> str:
        """What lies at the address --metrics."""
        from eyas.doctor.server.client import Client

        assert isinstance(self.exhibits.metrics, str)
        client = Client(self.exhibits.metrics, option="--metrics")
        return client.get_text("" if client.has_path else "/metrics")

    @cached_property
    def asking(self) -> Asking | None:
        """None without --server. Raises UserError if no OpenAI-compatible server answers."""
        if self.exhibits.server is None:  # files alone are judged without torch, which asking loads
            return None
        from eyas.doctor.server.asking import Asking

        return Asking(self)

    @cached_property
    def judge(self) -> Judge:
        """Says which of a server's tokens are the target's. Ask for it only where the target's layers are there."""
        from eyas.doctor.server.judging import Judge

        assert self.loaded_target is not None
        return Judge(self, self.loaded_target)

    @cached_property
    def tally(self) -> Tally:
        from eyas.doctor.server.tally import tally_of

        assert self.asking is not None
        return tally_of(self.asking, self.judge)

    # -- what a test may ask -------------------------------------------------------------------------------------

    def missing(self, needs: tuple[str, ...]) -> str | None:
        """What a hypothesis needs and was not given, in words; None if all is there."""
        given = self.exhibits.sources()
        for need in needs:
            if need == "layers":
                if self.exhibits.target is None:
                    return "needs --target, with the weights of its layers"
                if self.loaded_target is None:
                    return self.why_no_target
            elif need == "replay":
                if self.bench is None:
                    return self.why_no_bench
            elif need == "samples":
                if not self.samples:
                    return "no sample of a dump could be read" if self.exhibits.dump is not None else "needs --dump"
            elif need not in given:
                return _NEEDED.get(need, f"needs --{need}")
        return None

    def recorded(self, field: str) -> dict[str, Any]:
        """What the wirings of draft and dump say, by whose they are; a wiring that is absent says nothing."""
        wirings = {"draft": self.draft.said if self.draft else {}, "dump": self.dump.wiring if self.dump else {}}
        return {name: wiring[field] for name, wiring in wirings.items() if field in wiring}

    def suspects(self, *codes: str) -> bool:
        """Whether a test before this one confirmed one of these codes."""
        return any(fault.code in codes for fault in self.faults)
