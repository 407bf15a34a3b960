"""A trainer's history, in whatever form it lies beside a draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.doctor.train_course import oddities
from eyas.doctor.train_records import records


def rows(**columns: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [{"step": 10 * row, **{name: value(row) for name, value in columns.items()}} for row in range(40)]


def falling(row: int) -> float:
    return 3.0 - 0.05 * row


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", json.dumps({"log_history": [{"step": 1, "loss": 2.0}]})),
        ("whatever.jsonl", '{"step": 1, "train/ploss_0": 2.0}\n'),
        ("loss.csv", "step,loss\n1,2.0\n"),
        ("run.log", "10:02 INFO step 1 | loss 2.0 | lr 1e-4\n"),
        ("printed.log", "{'loss': 2.0, 'grad_norm': 1.0}\n"),
    ],
)
def test_every_form_is_read(name: str, text: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    assert len(records(tmp_path)[name]) == 1


def test_what_is_no_record_is_none(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"hidden_size": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false}')
    (tmp_path / "wiring.json").write_text('{"loss_mask_rule": "row p ...", "norm_output": false}')
    (tmp_path / "notes.log").write_text("nothing was lost\n")
    assert records(tmp_path) == {}


def test_a_run_that_went_well_is_not_odd():
    history = rows(loss=falling, grad_norm=lambda row: 1.0 + 0.1 * (row % 7), lr=lambda row: 1e-4 * (1 - row / 50), acc_0=lambda row: 0.4)
    assert oddities(history) == []


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (rows(loss=lambda row: float("nan") if row == 9 else falling(row)), "nan at step 90"),
        (rows(loss=lambda row: "nan" if row == 9 else str(falling(row))), "nan at step 90"),
        (rows(loss=lambda row: 2.0 + 0.1 * row), "the loss rises"),
        (rows(loss=lambda row: 2.0 if row < 3 else 1e-5), "foresees"),
        (rows(grad_norm=lambda row: 1.0 if row < 20 else 1e5), "diverged"),
        (rows(grad_norm=lambda row: 0.0), "nothing reaches the weights"),
        (rows(**{"eval/acc_1": lambda row: 1.3}), "a share above 1"),
        (rows(lr=lambda row: 1e-3 if row == 25 else 1e-4), "learning rate jumps"),
    ],
)
def test_what_went_wrong_is_said(history: list[dict[str, Any]], words: str):
    assert any(words in text for text in oddities(history)), oddities(history)
