"""The training loop: warm start, unroll, AdamW, checkpoints, validation, and the finished draft on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from eyas.data.store import Dump
from eyas.data.vocab import VocabMap, build_vocab_map
from eyas.draft.checkpoint import draft_wiring_fields, save_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.errors import UserError
from eyas.files import check_folder_writable, exclusive, writing
from eyas.progress import Progress, console
from eyas.targets.devices import DTYPES
from eyas.targets.families import LogitRule
from eyas.targets.target import Target
from eyas.train.batches import BatchOrder, load_batch
from eyas.train.card import card_text
from eyas.train.loss import StepCounts, TeacherHead, ttt_loss
from eyas.train.report import TrainReport
from eyas.train.settings import TrainSettings
from eyas.train.state import RunFolder
from eyas.wiring import Wiring

DEFAULT_DRAFT_VOCAB = 8192
_TIMED_STEPS = (4, 14)  # of the warm-up that turns minutes into steps: the first steps are slower


class Trainer:
    """One run on one device. Make it, then call `run`."""

    def __init__(self, target: Target, dump: Dump, settings: TrainSettings, out: Path) -> None:
        settings.check()
        _refuse_existing(out)
        self.target, self.dump, self.settings, self.out = target, dump, settings, out
        self.vocab_map = _vocab_map(dump, settings, target.vocab_size, target.stop_ids)
        self.draft = _new_draft(target, dump, settings, self.vocab_map)
        self.left_random = warm_start(self.draft, target)
        if self.left_random:
            console.print(f"not taken from the target, so started at random: {', '.join(self.left_random)}", highlight=False)
        self.draft.to(target.device).train()
        self.optimizer = torch.optim.AdamW(
            self.draft.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.head = _teacher_head(target, self.draft, DTYPES[settings.dtype])
        lengths = dump.lengths()
        _require_training_samples(dump)
        self.order = BatchOrder(dump.training, lengths, settings.tokens_per_batch, settings.seed)
        self.validation_order = BatchOrder(dump.validation, lengths, settings.tokens_per_batch, settings.seed) if dump.validation else None

    def run(self) -> TrainReport:
        """Train to the last step, going on from a checkpoint if there is one; write the draft to `out`."""
        working = self.out.with_name(self.out.name + ".training")
        with writing(working):
            working.mkdir(parents=True, exist_ok=True)
        with exclusive(working):
            _refuse_existing(self.out)  # another process may have finished it in the meantime
            return self._run(working)

    def _run(self, working: Path) -> TrainReport:
        identity = {**self.settings.to_json(), "dump": self.dump.hash(), "target": self.target.name}
        folder = RunFolder(working, identity)
        try:
            return self._finish(folder)
        except UserError:
            folder.remove_if_unused()
            raise

    def _finish(self, folder: RunFolder) -> TrainReport:
        record = folder.load_newest(self.draft, self.optimizer) or {"step": 0, "tokens_passed": 0, "seconds": 0.0}
        self._train(folder, record)
        validation = self.validate()
        report = self._report(record, validation)
        wiring = self.wiring()
        save_draft(self.out, self.draft, wiring, self.dump.trace_file, card_text(self.target, self.dump, wiring, self.settings, report))
        folder.remove()
        return report

    def wiring(self) -> Wiring:
        """The dump's wiring with the draft's own fields filled in."""
        return self.dump.wiring.replace(**draft_wiring_fields(self.draft), ttt_steps=self.settings.ttt_steps)

    @torch.no_grad()
    def validate(self, max_batches: int = 32) -> StepCounts:
        """Counts over the first validation batches (all of a small split); zero if there is no validation split."""
        counts = StepCounts.zero(self.settings.ttt_steps)
        if self.validation_order is None:
            return counts
        self.draft.eval()
        for number in range(min(max_batches, self.validation_order.batches_per_epoch)):
            counts.add(self._forward(self.validation_order.at(number))[1])
        self.draft.train()
        return counts

    # -- parts of the loop -------------------------------------------------------------------------------------

    def _train(self, folder: RunFolder, record: dict[str, Any]) -> None:
        total = folder.total_steps or self.settings.steps or self._steps_from_minutes(folder, record)
        if folder.total_steps is None:
            folder.fix_total_steps(total)
        window = StepCounts.zero(self.settings.ttt_steps)
        with Progress("training", total, "steps") as progress:
            progress.found(record["step"])
            while record["step"] < total:
                counts = self._step(record, total)
                window = _decayed(window, counts)
                rate = record["tokens_passed"] / max(1e-9, record["seconds"])
                progress.advance(1, note=_live(window, rate))
                if record["step"] % self.settings.checkpoint_every == 0 and record["step"] < total:
                    folder.save(record["step"], self.draft, self.optimizer, _without_step(record))

    def _step(self, record: dict[str, Any], total: int | None) -> StepCounts:
        started = time.perf_counter()
        rate = self.settings.rate_at(record["step"], total or 10**9)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, counts = self._forward(self.order.at(record["step"]))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.settings.grad_clip)
        if not bool(torch.isfinite(norm)):
            raise UserError(
                f"the gradient is not finite at step {record['step']}",
                got=float(norm),
                remedy="lower --learning-rate, or check the dump: eyas capture verifies finiteness",
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        record["step"] += 1
        record["tokens_passed"] += counts.rows[0]
        record["seconds"] += time.perf_counter() - started
        return counts

    def _forward(self, indices: list[int]) -> tuple[torch.Tensor, StepCounts]:
        batch = load_batch(self.dump, indices, self.target.device)
        dtype = DTYPES[self.settings.dtype]
        if dtype == torch.float32:
            batch = batch.to_dtype(dtype)
        with torch.autocast(self.target.device.type, dtype, enabled=dtype != torch.float32):
            return ttt_loss(self.draft, self.head, batch, self.settings.ttt_steps, self.settings.decay)

    def _steps_from_minutes(self, folder: RunFolder, record: dict[str, Any]) -> int:
        """Run the timed part of the warm-up; these are real steps. The number of steps is then stored."""
        assert self.settings.minutes is not None
        first, last = _TIMED_STEPS
        marks = {}
        started = time.perf_counter()
        for number in range(last):
            if number == first:
                marks["start"] = time.perf_counter()
            self._step(record, None)
        per_step = (time.perf_counter() - marks["start"]) / (last - first)
        left = self.settings.minutes * 60 - (time.perf_counter() - started)
        total = max(last + 1, last + int(left / per_step))
        console.print(f"{per_step:.2f} s a step: {total} steps in {self.settings.minutes:g} minutes")
        return total

    def _report(self, record: dict[str, Any], validation: StepCounts) -> TrainReport:
        return TrainReport(
            steps=record["step"],
            tokens_passed=record["tokens_passed"],
            seconds=record["seconds"],
            tokens_per_second=record["tokens_passed"] / max(1e-9, record["seconds"]),
            draft_vocab_size=len(self.vocab_map.d2t),
            vocab_coverage=self.vocab_map.coverage,
            left_random=self.left_random,
            validation_loss=validation.mean_loss,
            validation_accuracy=validation.accuracy,
            validation_conditional_accuracy=validation.conditional_accuracy,
            validation_simulated_acceptance_length=validation.simulated_acceptance_length,
        )


def check_place(out: Path) -> None:
    """Raises UserError if a draft is there already, or if none could be written."""
    _refuse_existing(out)
    check_folder_writable(out)


def check_request(dump: Dump, settings: TrainSettings, text_config: Any) -> None:
    """What can be known without the target's weights. Raises UserError for settings that do not fit the dump or the target's config."""
    _require_training_samples(dump)
    vocab_map = _vocab_map(dump, settings, int(text_config.vocab_size), ())
    _draft_config(text_config, dump, settings, vocab_map)


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} exists already", remedy="give another --out, or remove it first: a trained draft is not overwritten")


def _require_training_samples(dump: Dump) -> None:
    if not dump.training:
        raise UserError(f"{dump.path} has no training samples", remedy="prepare more chats, or a smaller --validation share")


def _vocab_map(dump: Dump, settings: TrainSettings, vocab_size: int, stop_ids: tuple[int, ...]) -> VocabMap:
    size = settings.draft_vocab_size
    return build_vocab_map(dump.token_counts(), min(DEFAULT_DRAFT_VOCAB, vocab_size) if size is None else size, stop_ids)


def _draft_config(text_config: Any, dump: Dump, settings: TrainSettings, vocab_map: VocabMap) -> DraftConfig:
    return DraftConfig.from_target(
        text_config,
        num_taps=len(dump.wiring.taps),
        draft_vocab_size=len(vocab_map.d2t),
        head=settings.head,
        hidden_size=settings.hidden_size,
        norm_before_fc=settings.norm_before_fc,
        fc_norm=settings.fc_norm,
        norm_before_residual=settings.norm_before_residual,
        norm_output=settings.norm_output,
    )


def _new_draft(target: Target, dump: Dump, settings: TrainSettings, vocab_map: VocabMap) -> Eagle3Draft:
    torch.manual_seed(settings.seed)
    draft = Eagle3Draft(_draft_config(target.config, dump, settings, vocab_map))
    draft.set_vocab_map(vocab_map.d2t, vocab_map.t2d)
    draft.use_target(target)
    return draft


def _teacher_head(target: Target, draft: Eagle3Draft, dtype: torch.dtype) -> TeacherHead:
    rule = LogitRule.of(target.config)
    ids = draft.to_target(torch.arange(draft.config.draft_vocab_size, device=target.device))
    return TeacherHead(target.head_rows(ids), rule.scale, rule.softcap, dtype)


def _decayed(window: StepCounts, counts: StepCounts, keep: float = 0.95) -> StepCounts:
    """A running mean over about twenty batches for the bar; single batches are too noisy to read."""
    return StepCounts(
        *(
            [keep * old + new for old, new in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(vars(window).values(), vars(counts).values(), strict=True)
        )
    )


def _live(window: StepCounts, rate: float) -> str:
    steps = "/".join(f"{100 * value:.0f}" for value in window.conditional_accuracy)
    return f"loss {window.mean_loss:.2f}  {steps} % right  length {window.simulated_acceptance_length:.2f}  {rate:,.0f} tok/s"


def _without_step(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "step"}
