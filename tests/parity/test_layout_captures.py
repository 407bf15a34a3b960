"""Dumps written by several ranks: the same as one process writes, and a lost rank ends the job and costs what it had in hand."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.capture.trace import SAME_WEIGHTS, Trace, compare_traces
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.store import Dump
from eyas.targets.loading import load_target
from eyas.targets.tiny_text import tiny_chats
from layouts.capture_worker import ON_PURPOSE, capture

HERE = Path(__file__).parent / "layouts"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE.parents[2] / 'src'}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
MAX_ERROR = 1e-5
RANK_TIMEOUT = 30.0


def torchrun(ranks: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_targets) -> str:
    return str(tiny_targets("kimi_k25"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, folder: str) -> Path:
    out = tmp_path_factory.mktemp("layout-captures")
    chats = out / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(24, seed=5)))
    prepare(folder, [chats], out / "prepared", PrepareSettings(validation=0.1))
    return out / "prepared"


@pytest.fixture(scope="module")
def alone(tmp_path_factory, folder: str, prepared: Path) -> Dump:
    """One process."""
    out = tmp_path_factory.mktemp("alone") / "dump"
    capture(load_target(folder, device=torch.device("cpu"), dtype=torch.float32), folder, str(prepared), str(out))
    return Dump(out)


def require_same(dump: Dump, alone: Dump) -> None:
    """The same states, and a trace of the same target."""
    traces = compare_traces(*(Trace.load(one.path / "trace.safetensors") for one in (dump, alone)))
    assert traces is not None and traces.same and traces.distance <= SAME_WEIGHTS
    assert dump.num_samples == alone.num_samples
    for index in range(alone.num_samples):
        found, wanted = dump.sample(index), alone.sample(index)
        for what in ("token_ids", "loss_mask", "top1"):
            assert torch.equal(getattr(found, what), getattr(wanted, what)), what
        for what in ("states", "teacher"):
            left, right = getattr(found, what), getattr(wanted, what)
            assert float(((left - right).norm(dim=-1) / right.norm(dim=-1)).max()) <= MAX_ERROR, what


@pytest.mark.timeout(1200)
def test_a_lost_rank_ends_the_job_and_the_next_run_goes_on(tmp_path, folder: str, prepared: Path, alone: Dump):
    """Killed, hanging and raising, one after the other, on one dump; the run after them finishes it."""

    def run(how: str, at_shard: int | None) -> tuple[subprocess.CompletedProcess[str], float]:
        request: dict[str, Any] = {"tp": 2, "cp": 1, "target": folder, "prepared": str(prepared), "out": str(tmp_path / "dump")}
        path = tmp_path / "request.json"
        path.write_text(json.dumps({**request, "how": how, "at_shard": at_shard, "timeout": RANK_TIMEOUT}))
        started = time.monotonic()
        done = torchrun(2, HERE / "capture_worker.py", path)
        return done, time.monotonic() - started

    num_shards = 0
    for at_shard, (how, said) in enumerate([("kill", "Signal 9"), ("hang", "lost another rank"), ("raise", ON_PURPOSE)], start=1):
        done, seconds = run(how, at_shard)
        assert done.returncode == 1, (how, done.stderr[-3000:])
        assert said in done.stderr, (how, done.stderr[-3000:])
        written = len(json.loads((tmp_path / "dump" / "manifest.json").read_text())["shards"])
        assert num_shards <= written >= at_shard, "what was finished stays"
        num_shards = written
        assert seconds < 600
    done, _ = run("none", None)
    assert done.returncode == 0, done.stderr[-3000:]
    dump = Dump(tmp_path / "dump")
    assert f"({num_shards} there already)" in done.stderr
    require_same(dump, alone)
    manifest = json.loads((tmp_path / "dump" / "manifest.json").read_text())
    assert {json.dumps(shard["layout"]) for shard in manifest["shards"]} == {'{"tp": 2, "cp": 1}'}
    assert len(manifest["shards"]) > 4


@pytest.mark.timeout(600)
def test_two_machines_write_the_dump_of_one_process(tmp_path, folder: str, prepared: Path, alone: Dump):
    """Two launchers that meet at a port, as on two machines. The chats and the dump are only where rank 0 is."""
    where = ["--data", str(prepared), "--out", str(tmp_path / "dump")], ["--data", str(tmp_path / "none"), "--out", str(tmp_path / "no")]
    arguments = ["-m", "eyas.cli.main", "capture", "--target", folder, "--taps", "embed,layer:0,layer:1", "--dtype", "fp32"]
    layout = ["--tp", "2", "--cp", "2", "--pack", "--batch-tokens", "256", "--json"]
    port = free_port()

    def start(node: int) -> subprocess.Popen[str]:
        meet = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
        command = [sys.executable, "-m", "torch.distributed.run", *meet, *arguments, *layout, *where[node]]
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    nodes = [start(node) for node in (0, 1)]
    (said, words), (nothing, others) = [node.communicate(timeout=600) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], words[-3000:] + others[-3000:]
    report = json.loads(said)
    assert nothing == ""
    assert report["num_samples"] == alone.num_samples and report["teacher_check"]["passed"]
    require_same(Dump(tmp_path / "dump"), alone)
    assert not (tmp_path / "no").exists()
    manifest = json.loads((tmp_path / "dump" / "manifest.json").read_text())
    assert manifest["shards"][0]["layout"] == {"tp": 2, "cp": 2, "cp_order": "zig-zag"}


@pytest.mark.timeout(600)
def test_the_command_decodes_what_one_process_decodes(folder: str):
    arguments = ["-m", "eyas.cli.main", "generate", "--target", folder, "--prompt", "the cat", "--max-new-tokens", "12", "--dtype", "fp32"]
    split = torchrun(2, *arguments, "--tp", "2", "--json")
    assert split.returncode == 0, split.stderr[-3000:]
    one = subprocess.run([sys.executable, *arguments, "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert json.loads(split.stdout)["tokens"] == json.loads(one.stdout)["tokens"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tp", "2"], "--tp times --cp must be the number of processes, and 2 times 1 is not"),
        (["--cp", "0"], "--cp must be at least 1"),
        (["--cp-order", "random"], "unknown --cp-order"),
        (["--rank-timeout", "nan"], "--rank-timeout must be a number of seconds"),
    ],
)
def test_layouts_that_cannot_be(options: list[str], words: str, folder: str, prepared: Path, tmp_path, capsys):
    from eyas.cli.main import main

    with pytest.raises(SystemExit) as exit_:
        main(["capture", "--target", folder, "--data", str(prepared), "--taps", "embed", "--out", str(tmp_path / "dump"), *options])
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err
