"""What is replayed of the user's own chats: their answers, or the target's where most of them have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eyas.doctor.examination import Examination
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.replay.texts import texts_of
from eyas.targets.loading import load_target
from eyas.targets.target import Target

ANSWERED = 3


@pytest.fixture(scope="module")
def target(tiny_targets) -> Target:
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)


def replayed(folder: Path, tiny: Path, target: Target, prompts: int) -> tuple[int, list[str]]:
    """(texts, notes) of a file with three answered chats and so many prompts without an answer."""
    chats = [[{"role": "user", "content": f"question {number}"}] for number in range(ANSWERED + prompts)]
    for chat in chats[:ANSWERED]:
        chat.append({"role": "assistant", "content": "an answer of several words"})
    data = folder / "chats.jsonl"
    data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    exam = Examination(Exhibits(target=str(tiny), data=data), Options())
    return len(texts_of(exam, target)), exam.notes


def test_answers_are_taken_as_they_are_if_most_chats_have_one(tmp_path, tiny_targets, target):
    assert replayed(tmp_path, tiny_targets("llama"), target, prompts=2) == (ANSWERED, [])


def test_prompts_are_answered_by_the_target_and_not_left_out(tmp_path, tiny_targets, target):
    count, notes = replayed(tmp_path, tiny_targets("llama"), target, prompts=9)
    assert count == ANSWERED + 9
    assert "3 of 12 chats" in notes[0]
