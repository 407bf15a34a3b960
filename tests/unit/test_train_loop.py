"""Whole runs on a tiny target: learning, bit-identical resume after SIGKILL, refusals."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eyas.data.store import Dump
from eyas.draft.checkpoint import load_draft
from eyas.errors import UserError
from eyas.files import exclusive
from eyas.targets.loading import load_target
from eyas.train.loop import Trainer
from eyas.train.settings import TrainSettings
from eyas.train.state import RunFolder

CPU = torch.device("cpu")


def settings(**changes: object) -> TrainSettings:
    return TrainSettings(
        **{"steps": 60, "tokens_per_batch": 512, "dtype": "float32", "learning_rate": 2e-3, "checkpoint_every": 5, **changes}
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def target(tiny_targets):
    return load_target(str(tiny_targets("llama", trained=True)), device=CPU, dtype=torch.float32)


def test_a_draft_learns_and_its_folder_says_what_it_was_fed(target, tiny_dump: Path, tmp_path: Path) -> None:
    dump = Dump.open(tiny_dump)
    trainer = Trainer(target, dump, settings(), tmp_path / "draft")
    before = trainer.validate()
    report = trainer.run()
    assert report.validation_accuracy[0] > before.accuracy[0] + 0.1
    assert report.validation_loss < before.mean_loss
    loaded = load_draft(tmp_path / "draft", target, torch.float32)
    assert loaded.wiring.taps == dump.wiring.taps
    assert loaded.wiring.ttt_steps == 3
    assert loaded.trace_file is not None
    assert not (tmp_path / "draft.training").exists()


def test_train_and_validation_samples_are_disjoint(target, tiny_dump: Path, tmp_path: Path) -> None:
    trainer = Trainer(target, Dump.open(tiny_dump), settings(), tmp_path / "draft")
    assert trainer.validation_order is not None
    read = {index for step in range(3 * trainer.order.batches_per_epoch) for index in trainer.order.at(step)}
    held = {index for step in range(trainer.validation_order.batches_per_epoch) for index in trainer.validation_order.at(step)}
    assert held
    assert not read & held


def weights_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def train_command(target_folder: Path, dump: Path, out: Path, steps: int) -> list[str]:
    places = ["--target", str(target_folder), "--dump", str(dump), "--out", str(out), "--device", "cpu"]
    choices = ["--steps", str(steps), "--dtype", "fp32", "--checkpoint-every", "5", "--tokens-per-batch", "512"]
    return [sys.executable, "-m", "eyas.cli.main", "train", *places, *choices, "--json"]


def test_resume_after_kill_is_bit_identical(tiny_targets, tiny_dump: Path, tmp_path: Path) -> None:
    folder = tiny_targets("llama", trained=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(train_command(folder, tiny_dump, tmp_path / "whole", 40), check=True, env=env, capture_output=True)
    command = train_command(folder, tiny_dump, tmp_path / "killed", 40)
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed.training").glob("step-*[05]")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed").exists(), "the run ended before it could be killed"
    subprocess.run(command, check=True, env=env, capture_output=True)
    assert weights_hash(tmp_path / "killed") == weights_hash(tmp_path / "whole")


def test_minutes_fix_the_number_of_steps(target, tiny_dump: Path, tmp_path: Path) -> None:
    report = Trainer(target, Dump.open(tiny_dump), settings(steps=None, minutes=0.05), tmp_path / "draft").run()
    assert report.steps >= 15
    assert report.seconds < 30


def test_resume_with_other_settings_is_refused(target, tiny_dump: Path, tmp_path: Path) -> None:
    from eyas.train.state import RunFolder

    trainer = Trainer(target, Dump.open(tiny_dump), settings(), tmp_path / "draft")
    identity = {**trainer.settings.to_json(), "dump": trainer.dump.hash(), "target": target.name}
    RunFolder(tmp_path / "draft.training", identity)
    with pytest.raises(UserError, match=r"learning_rate = 0.002"):
        Trainer(target, Dump.open(tiny_dump), settings(learning_rate=1e-3), tmp_path / "draft").run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttt_steps": 0}, "--ttt-steps"),
        ({"steps": None}, "either --steps or --minutes"),
        ({"minutes": 1.0}, "either --steps or --minutes"),
        ({"learning_rate": float("nan")}, "--learning-rate"),
        ({"decay": 1.5}, "decay is out of range"),
    ],
)
def test_settings_that_cannot_train_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**changes).check()


def test_two_trainings_at_once_are_refused(target, tiny_dump: Path, tmp_path: Path) -> None:
    (tmp_path / "draft.training").mkdir()
    with exclusive(tmp_path / "draft.training"), pytest.raises(UserError, match="another process"):
        Trainer(target, Dump.open(tiny_dump), settings(), tmp_path / "draft").run()


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(target, tiny_dump: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not finite"):
        Trainer(target, Dump.open(tiny_dump), settings(learning_rate=1e30), tmp_path / "draft").run()
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_named(target, tiny_dump: Path, tmp_path: Path) -> None:
    trainer = Trainer(target, Dump.open(tiny_dump), settings(), tmp_path / "draft")
    folder = RunFolder(tmp_path / "draft.training", {})
    folder.save(5, trainer.draft, trainer.optimizer, {"tokens_passed": 1, "seconds": 1.0})
    weights = tmp_path / "draft.training" / "step-0000005" / "draft.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="step-0000005 is damaged"):
        folder.load_newest(trainer.draft, trainer.optimizer)


@pytest.mark.parametrize("record", [{"tokens_passed": 1}, {"tokens_passed": 1, "seconds": "1"}, {"tokens_passed": -1, "seconds": 1.0}])
def test_a_checkpoint_whose_counters_are_lost_is_named(target, tiny_dump: Path, tmp_path: Path, record: dict[str, object]) -> None:
    trainer = Trainer(target, Dump.open(tiny_dump), settings(), tmp_path / "draft")
    folder = RunFolder(tmp_path / "draft.training", {})
    folder.save(5, trainer.draft, trainer.optimizer, record)
    with pytest.raises(UserError, match="step-0000005 is damaged"):
        folder.load_newest(trainer.draft, trainer.optimizer)
