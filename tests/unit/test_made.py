"""Taught targets without the teaching: their language, the gates by a second way of reckoning, and what a failed gate leaves."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch

from eyas.cli.main import main
from eyas.errors import UserError
from eyas.targets import made
from eyas.targets.gates import Gates, measure_gates
from eyas.targets.loading import load_target
from eyas.targets.made import MADE, RECIPES, GatesFailedError, made_tokenizer, make_target
from eyas.targets.made_text import is_held_out, made_chats
from eyas.targets.teach import Teaching

CPU = torch.device("cpu")
GOOD = Gates(0.8, 0.05, 7, "layer:58", 0.7, 1000)


def test_no_question_is_both_taught_and_held_out():
    taught = {chat[0]["content"] for chat in made_chats(800, 1, held_out=False)}
    held = {chat[0]["content"] for chat in made_chats(200, 1, held_out=True)}
    assert not taught & held
    assert len(held) > 190, "the language is wide enough that chats seldom repeat"
    assert all(map(is_held_out, held))
    assert not any(map(is_held_out, taught))
    assert made_chats(5, 1, held_out=True) == made_chats(5, 1, held_out=True) != made_chats(5, 2, held_out=True)


def test_the_vocabulary_is_full_and_words_are_single_tokens():
    tokenizer = made_tokenizer()
    assert len(tokenizer) == 512
    text = " ".join(message["content"] for chat in made_chats(40, 5, held_out=True) for message in chat)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) <= 1.1 * len(text.replace(".", " .").replace(",", " ,").split())


@pytest.mark.parametrize(
    ("field", "value"), [("held_out_top1", 0.59), ("smallest_step", 0.029), ("late_agreement", 0.91), ("held_out_top1", float("nan"))]
)
def test_each_gate_alone_is_enough_to_fail(field: str, value: float):
    assert GOOD.passed
    failed = dataclasses.replace(GOOD, **{field: value})
    assert not failed.passed
    assert len(failed.failures()) == 1


@pytest.mark.parametrize("family", ["kimi_k25", "deepseek_v32"])
def test_gates_are_what_a_look_at_each_position_gives(tiny_targets, family: str):
    target = load_target(str(tiny_targets(family)), device=CPU, dtype=torch.float32)
    chats = made_chats(6, 3, held_out=True)
    right, agrees, steps = [], [], []
    for chat in chats:
        text = target.tokenizer.apply_chat_template(chat, tokenize=False)
        prompt = target.tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
        ids = target.tokenizer.encode(text.removesuffix("\n"), add_special_tokens=False)
        with torch.no_grad():
            output = target.model(torch.tensor([ids]), output_hidden_states=True)
            late = target.lm_head(target.norm(output.hidden_states[2]))[0].argmax(-1)
        top1 = output.logits[0].argmax(-1)
        for place in range(len(target.tokenizer.encode(prompt, add_special_tokens=False)), len(ids)):
            right.append(int(top1[place - 1] == ids[place]))
            agrees.append(int(late[place - 1] == top1[place - 1]))
            states = [state[0, place - 1] for state in output.hidden_states[:4]]
            steps.append([float((after - before).norm() / before.norm()) for before, after in itertools.pairwise(states)])
    gates = measure_gates(target, chats)
    assert gates.num_positions == len(right)
    assert gates.held_out_top1 == pytest.approx(sum(right) / len(right), abs=2e-3)
    assert gates.late_agreement == pytest.approx(sum(agrees) / len(agrees), abs=2e-3)
    assert gates.late_tap == "layer:1"
    assert gates.smallest_step <= torch.tensor(steps).median(0).values.min() + 1e-4


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of two chats: certainly not good enough."""
    monkeypatch.setitem(
        RECIPES, "kimi-tiny", tuple(dataclasses.replace(recipe, teaching=Teaching(1, 2, 1e-3)) for recipe in RECIPES["kimi-tiny"])
    )


def test_a_failed_gate_publishes_nothing_and_is_exit_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    hurried(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["model", "make", "kimi-tiny", "--small", "--out", str(tmp_path / "out"), "--json"])
    assert ended.value.code == 1
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] is None
    assert any("top-1" in failure for failure in said["failed"])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(GatesFailedError):
        make_target("kimi-tiny", tmp_path / "out", small=True)


def test_what_is_made_holds_its_card_and_chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    hurried(monkeypatch)
    monkeypatch.setattr(made, "measure_gates", lambda target, chats: GOOD)
    make_target("kimi-tiny", tmp_path / "out", small=True)
    assert GOOD.table() in (tmp_path / "out/README.md").read_text()
    for file, held_out in ((made.TRAIN_CHATS, False), (made.HELD_OUT_CHATS, True)):
        chats = [json.loads(line) for line in (tmp_path / "out" / file).read_text().splitlines()]
        assert len({chat["id"] for chat in chats}) == len(chats) >= 100
        assert {is_held_out(chat["messages"][0]["content"]) for chat in chats} == {held_out}
    with pytest.raises(UserError, match="not empty"):
        make_target("kimi-tiny", tmp_path / "out", small=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kimi-tiny", "--trained"), "always taught"),
        (("tiny-llama", "--small"), "has one size"),
        (("kimi",), "not the name of a tiny or taught target"),
        (("dsv32-tiny", "--seed", str(2**63)), "--seed is out of range"),
    ],
)
def test_options_that_mean_nothing_are_user_errors(tmp_path: Path, capsys, arguments: tuple[str, ...], message: str):
    with pytest.raises(SystemExit) as ended:
        main(["model", "make", *arguments, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_recipes_are_of_the_depth_and_number_of_experts_that_they_stand_for():
    large = {name: RECIPES[name][0].settings for name in MADE}
    assert {name: settings["num_hidden_layers"] for name, settings in large.items()} == {"kimi-tiny": 61, "dsv32-tiny": 61}
    assert (large["kimi-tiny"]["n_routed_experts"], large["kimi-tiny"]["num_experts_per_tok"]) == (384, 8)
    assert (large["kimi-tiny"]["first_k_dense_replace"], large["dsv32-tiny"]["index_topk"]) == (1, 16)
