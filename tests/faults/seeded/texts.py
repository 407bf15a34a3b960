"""Faults of kinds K, L and S: what the texts are, what a training recorded, weights that changed afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from eyas.data.chats import Chat
from eyas.files import sha256_text
from seeded.dumps import of_dump, target_of
from seeded.edits import Rows, copied, redraft, redump, replace_bytes, retarget, rolled, set_keys
from seeded.figures import saved, vllm_metrics
from seeded.registry import FILES, add, fault
from seeded.sets import FAMILIES, Set, load, make_dump, write_chats

# -- K: texts ----------------------------------------------------------------------------------------------------


def masked(value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Set], Set]:
    def change(number: int, rows: Rows) -> None:
        rows["loss_mask"].copy_(value(rows["loss_mask"].clone()))

    return of_dump(change)


def other_template(s: Set) -> Set:
    """The served template puts an empty thought in front of every answer."""
    made = retarget(s)
    path = made.target / "chat_template.jinja"
    text = path.read_text()
    thought = "('<think></think>' if message.role == 'assistant' else '') + message.content"
    replace_bytes(path, text.replace("message.content", thought).encode())
    assert path.read_text() != text
    return made


def other_tokenizer(s: Set) -> Set:
    made = retarget(s)
    path = made.target / "tokenizer.json"
    value = json.loads(path.read_text())
    words = sorted(value["model"]["vocab"], key=value["model"]["vocab"].get)
    for left, right in ((300, 301), (320, 330)):
        a, b = words[left], words[right]
        value["model"]["vocab"][a], value["model"]["vocab"][b] = right, left
    replace_bytes(path, json.dumps(value).encode())
    return made


def remade(s: Set, chats: list[Chat]) -> Set:
    data, dump = s.work / "other-chats.jsonl", s.work / "other-dump"
    write_chats(data, chats)
    make_dump(target_of(s.target), s.target, data, dump)
    return s.but(data=data, dump=dump)


@fault("text-foreign", "answers of somebody else", "llama", "qwen3")
def foreign_answers(s: Set) -> Set:
    """The right questions with words in their answers turned round."""
    chats = []
    for number, line in enumerate(s.data.read_text().splitlines()):
        messages = json.loads(line)["messages"]
        for message in messages:
            if message["role"] == "assistant":
                message["content"] = " ".join(reversed(message["content"].split()))
        chats.append(Chat(str(number), tuple(messages)))
    return remade(s, chats)


@fault("bos-doubled", "texts begin with two beginning-of-text tokens", "llama")
def doubled_bos(s: Set) -> Set:
    made = retarget(s)
    path = made.target / "chat_template.jinja"
    replace_bytes(path, ("<|begin|><|begin|>" + path.read_text()).encode())
    data, dump = s.data, s.work / "bos-dump"
    make_dump(load(made.target), made.target, data, dump)
    return made.but(dump=dump, given=("target", "dump"))


@fault("data-broken", "a role that the template refuses, in every chat", depths=FILES)
def odd_roles(s: Set) -> Set:
    path = s.work / "odd.jsonl"
    path.write_text(s.data.read_text().replace('"role": "user"', '"role": "critic"'))
    return s.but(data=path)


@fault("template-differs", "answers were rendered behind an empty thought", "llama")
def thoughtful_texts(s: Set) -> Set:
    """The dump's texts have it, and the served template has not; the record names the served one."""
    other = other_template(s)
    make_dump(load(other.target), other.target, s.data, s.work / "thoughts")
    here = json.loads((s.dump / "manifest.json").read_text())["wiring"]["chat_template_hash"]
    made = redump(s.but(dump=s.work / "thoughts"), wiring={"chat_template_hash": here})
    return made.but(given=("target", "dump"))


@fault("template-differs", "texts lack the beginning that the served template writes", "qwen3")
def without_bos(s: Set) -> Set:
    made = retarget(s)
    path = made.target / "chat_template.jinja"
    replace_bytes(path, ("<|begin|>" + path.read_text()).encode())
    here = sha256_text(path.read_text())
    return redump(made, wiring={"chat_template_hash": here}).but(given=("target", "dump"))


@fault("template-differs", "texts lack the system prompt that the served template adds", "llama")
def without_system_prompt(s: Set) -> Set:
    made = retarget(s)
    path = made.target / "chat_template.jinja"
    added = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    replace_bytes(path, (added + path.read_text()).encode())
    here = sha256_text(path.read_text())
    return redump(made, wiring={"chat_template_hash": here}).but(given=("target", "dump"))


@fault("data-broken", "a role that the template refuses, in one chat of twenty", "qwen3", depths=FILES)
def rare_roles(s: Set) -> Set:
    lines = s.data.read_text().splitlines()
    lines = [line.replace('"role": "user"', '"role": "critic"') if place % 20 == 0 else line for place, line in enumerate(lines)]
    path = s.work / "rare.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return s.but(data=path, given=("target", "data"))


def at_random(mask: torch.Tensor) -> torch.Tensor:
    return (torch.rand(mask.shape, generator=torch.Generator().manual_seed(len(mask))) < 0.5).to(mask.dtype)


add("mask-rule", "everything is marked as answer", masked(torch.ones_like), "llama", "deepseek_v3")
add("mask-rule", "the questions are marked", masked(lambda mask: 1 - mask), "qwen3")
add("mask-rule", "nothing is marked", masked(torch.zeros_like))
add("mask-rule", "half of everything is marked, at random", masked(at_random))
add("mask-shift", "mask two positions late", of_dump(rolled("loss_mask", 2)), "qwen3")
add("template-differs", "served with an empty thought", other_template, "llama", "qwen3", depths=FILES)
add("tokenizer-differs", "tokens exchanged", other_tokenizer, "llama", "deepseek_v3", depths=FILES)

# -- L: what the training recorded ---------------------------------------------------------------------------------


def one_step(s: Set) -> Set:
    """Trained for one step and served with three proposals."""
    text = vllm_metrics(1000, 3000, 860, (700, 120, 40))
    return redraft(s, wiring={"ttt_steps": 1}).but(metrics=saved(s, "m.txt", text), given=("target", "draft"))


def record(*rows: dict[str, Any]) -> Callable[[Set], Set]:
    """A trainer's history beside the draft."""

    def plant(s: Set) -> Set:
        folder = copied(s.draft, s.work)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": list(rows)}))
        return s.but(draft=folder, given=("target", "draft"))

    return plant


add("train-steps", "trained for one step, served with three", one_step, "llama", "qwen3", depths=FILES)
add("train-record", "a loss of NaN", record({"step": 10, "loss": 2.0}, {"step": 20, "loss": float("nan")}), depths=FILES)
add("train-record", "an accuracy above 1", record({"step": 10, "full_acc": 0.6}, {"step": 20, "full_acc": 1.42}), "qwen3", depths=FILES)


def course(**columns: Callable[[int], float]) -> Callable[[Set], Set]:
    """Forty rows of a history."""
    return record(*({"step": 10 * row, **{name: value(row) for name, value in columns.items()}} for row in range(40)))


def written(name: str, text: str) -> Callable[[Set], Set]:
    """A history in a form of its own."""

    def plant(s: Set) -> Set:
        folder = copied(s.draft, s.work)
        (folder / name).write_text(text)
        return s.but(draft=folder, given=("target", "draft"))

    return plant


table_of_losses = "step,loss,lr\n" + "".join(f"{10 * row},{2.0 + 0.1 * row},0.0001\n" for row in range(40))
printed_losses = "".join(f"step {10 * row} | loss {'nan' if row > 20 else 2.0 - 0.01 * row} | lr 1e-4\n" for row in range(40))
add("train-record", "the loss rises", course(loss=lambda row: 2.0 + 0.02 * row, learning_rate=lambda row: 1e-4), depths=FILES)
add("train-record", "no gradient arrives", course(loss=lambda row: 2.0, grad_norm=lambda row: 0.0), "qwen3", depths=FILES)
add("train-record", "a rate of nothing", course(loss=lambda row: 2.0 - 0.01 * row, learning_rate=lambda row: 0.0), depths=FILES)
add(
    "train-record",
    "a gradient that grows without end",
    course(loss=lambda row: 2.0, grad_norm=lambda row: 1.0 if row < 20 else 1e5),
    depths=FILES,
)
add("train-record", "a loss of nearly nothing", course(loss=lambda row: 2.0 if row < 3 else 1e-4), "qwen3", depths=FILES)
add("train-record", "a table that diverges", written("loss.csv", table_of_losses), depths=FILES)
add("train-record", "printed lines with a loss of NaN", written("train.log", printed_losses), "qwen3", depths=FILES)
add(
    "train-record",
    "an accuracy above 1 in a file of another name",
    written("eval_history.json", '[{"eval/acc_0": 0.5}, {"eval/acc_0": 1.4}]'),
    depths=FILES,
)
add("train-steps", "trained for no step at all", lambda s: no_steps(s), depths=FILES)


def no_steps(s: Set) -> Set:
    folder = copied(s.draft, s.work)
    set_keys(folder / "wiring.json", {"ttt_steps": 0})
    return s.but(draft=folder, given=("target", "draft"))


# -- S: weights that changed -----------------------------------------------------------------------------------------


def tuned(held: dict[str, torch.Tensor]) -> None:
    """A fine-tuning's worth of change in every matrix."""
    generator = torch.Generator().manual_seed(6)
    for name, weight in held.items():
        if weight.dim() > 1:
            held[name] = weight + 0.15 * weight.std() * torch.randn(weight.shape, generator=generator)


def stale(s: Set) -> Set:
    """Dump and target are new; the draft is that of the old weights."""
    made = retarget(s, tuned)
    make_dump(load(made.target), made.target, s.data, s.work / "new-dump")
    return made.but(dump=s.work / "new-dump")


add("target-changed", "the target was trained on", lambda s: retarget(s, tuned).but(given=("target", "draft", "data")), *FAMILIES)
add("draft-stale", "a dump of newer weights", stale, "llama")
