"""eyas trace record and check: the verdicts in JSON and in words, and their exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.cli.main import main


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def world(tiny_targets, tmp_path_factory) -> dict[str, Path]:
    """A trace, and the states of its own tokens: right, with a slot wrong, and as two ranks that hold half of the columns."""
    from eyas.capture.trace import named_states
    from eyas.targets.loading import load_target

    folder, target = tmp_path_factory.mktemp("trace"), tiny_targets("llama")
    arguments = ["--target", target, "--out", folder / "trace.safetensors", "--prompt-out", folder / "ids.json", "--dtype", "fp32"]
    assert run("trace", "record", *arguments) == 0
    ids = json.loads((folder / "ids.json").read_text())
    states = named_states(load_target(str(target), device=torch.device("cpu"), dtype=torch.float32), ids)

    def write(name: str, stack: torch.Tensor) -> None:
        save_file({"token_ids": torch.tensor(ids), "hidden_states": stack.bfloat16().contiguous()}, folder / name)

    right = torch.stack([states[name] for name in ("boundary:0", "boundary:2", "boundary:3")], dim=1)
    write("right.safetensors", right.flatten(1))
    write("shifted.safetensors", torch.stack([states[name] for name in ("boundary:1", "boundary:2", "boundary:3")], dim=1))
    for rank, part in enumerate(right.chunk(2, dim=-1)):
        write(f"rank{rank}.safetensors", part)
    return {path.stem: path for path in folder.iterdir()} | {"target": target}


TAPS = ("--taps", "embed,layer:1,layer:2")


def test_right_states(world, capsys):
    assert run("trace", "check", world["trace"], world["right"], *TAPS, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ok"] is True
    assert [slot["found"] for slot in value["slots"]] == ["embed", "layer:1", "layer:2"]
    assert set(value["slots"][0]) >= {"slot", "expected", "found", "distance", "next_best", "verdict"}


def test_a_wrong_slot_in_words(world, capsys):
    assert run("trace", "check", world["trace"], world["shifted"], *TAPS) == 1
    out = capsys.readouterr().out
    assert "slot 0 holds layer:0 (distance" in out
    assert "expected embed: off by one" in out


def test_ranks_and_a_target(world, capsys):
    assert run("trace", "check", world["trace"], world["rank0"], world["rank1"], *TAPS, "--json") == 1
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert [(slot["found"], slot["verdict"]) for slot in slots] == [(name, "columns scattered") for name in ("embed", "layer:1", "layer:2")]
    assert run("trace", "check", world["trace"], world["right"], *TAPS, "--target", world["target"], "--dtype", "fp32", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    ("taps", "message"),
    [("embed,layer:1", "more states than are expected"), ("embed,layer:1,layer:9", "lies beyond"), ("embed", "more states than")],
)
def test_slots_that_nobody_expects_are_not_passed_over(world, capsys, taps: str, message: str):
    assert run("trace", "check", world["trace"], world["right"], "--taps", taps) == 2
    assert message in capsys.readouterr().err


def test_rows_without_tokens_and_traces_that_are_nowhere(world, tmp_path: Path, capsys):
    tensors = load_file(world["right"])
    save_file(tensors | {"token_ids": tensors["token_ids"][:-70].clone()}, tmp_path / "states.safetensors")
    assert run("trace", "check", world["trace"], tmp_path / "states.safetensors", *TAPS) == 2
    assert "more rows than tokens" in capsys.readouterr().err
    save_file(tensors | {"token_ids": tensors["token_ids"][:-2].clone()}, tmp_path / "states.safetensors")
    assert run("trace", "check", world["trace"], tmp_path / "states.safetensors", *TAPS) == 0
    assert "2 rows more than tokens, taken for padding" in " ".join(capsys.readouterr().err.split())
    assert run("trace", "check", tmp_path / "nowhere", world["right"], *TAPS) == 2
    assert "no trace, draft or dump" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["a damaged file", "no states", "no trace"])
def test_what_cannot_be_read_is_exit_2(world, tmp_path: Path, capsys, damage: str):
    trace, states = world["trace"], tmp_path / "states.safetensors"
    if damage == "a damaged file":
        states.write_bytes(b"\xff" * 64)
    elif damage == "no states":
        save_file({"token_ids": torch.arange(4)}, states)
    else:
        trace, states = world["right"], world["right"]
    assert run("trace", "check", trace, states, "--json") == 2
    assert str(states) in capsys.readouterr().err
