"""Whatever is done to a file that somebody else wrote: an answer or exit 2 with the file, never a traceback, nothing half-written.

Artefacts of every reader (checkpoints of every project, dumps of every project, a draft, a trace, captured states) are copied,
one file is changed at random, and the command is run. The changes do not know the formats: bytes, links and pipes for any file;
odd values, keys and texts for JSON; odd tensors and headers for safetensors; odd objects and archives for pickled files.
"""

from __future__ import annotations

import importlib
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from damage import ANY, BY_ENDING
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eyas.cli.main import main
from eyas.draft.checkpoint import is_draft, read_draft
from eyas.formats import export_draft, import_draft
from eyas.taps import parse_taps

ROUNDTRIP = Path(__file__).parent.parent / "roundtrip"
TAPS = "layer:1,layer:7,layer:12"
SEEDS = 20  # a case
HOLDERS = ("eyas.engine.pair", "eyas.train.job", "eyas.doctor.replay.loading", "eyas.doctor.server.judging", "eyas.quickstart.run")


@dataclass(frozen=True)
class World:
    folder: Path
    target: Path

    def command(self, case: str, path: Path, out: Path) -> list[str]:
        kind, name = case.split(" ")
        if kind == "checkpoint":
            return ["import", str(path), "--out", str(out), "--taps", TAPS, *(["--from", name] if name != "sidecar" else [])]
        if kind == "dump":
            taps = [] if name == "automodel" else ["--taps", "layer:0,layer:1,layer:2"]  # it states them
            return ["import", str(path), "--out", str(out), "--target", str(self.target), "--dtype", "fp32", *taps]
        trace, states, taps = path / "trace.safetensors", path / "states.safetensors", ["--taps", "embed,layer:1,layer:2"]
        commands = {
            "show": ["wiring", "show", str(path)],
            "translate": ["wiring", "translate", str(path), "--to", "vllm==0.33.0", "--target", str(self.folder / "small")],
            "export": ["export", str(path), "--to", "specforge", "--out", str(out)],
            "check": ["trace", "check", str(trace), str(states), *taps],
            "check-target": ["trace", "check", str(trace), str(states), *taps, "--target", str(self.target), "--dtype", "fp32"],
            "ranks": ["trace", "check", str(trace), str(states), str(path / "rank.safetensors"), *taps],
        }
        return commands[name]


CHECKPOINTS = sorted(path.name for path in (ROUNDTRIP / "golden").iterdir() if path.is_dir())
DUMPS = sorted(path.name for path in (ROUNDTRIP / "golden_dumps").iterdir() if path.is_dir())
CASES = [
    *(f"checkpoint {name}" for name in [*CHECKPOINTS, "sidecar"]),
    *(f"dump {name}" for name in DUMPS),
    *("draft show", "draft translate", "draft export", "trace check", "trace check-target", "trace ranks"),
]


@pytest.fixture(scope="module")
def world(tiny_targets, tmp_path_factory) -> Iterator[World]:
    """Healthy artefacts: one folder a case, copied before it is changed. The target, which is not hostile, is loaded once for all."""
    from eyas.capture.trace import named_states, record_trace
    from eyas.targets.loading import load_target

    folder = tmp_path_factory.mktemp("healthy")
    target = load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)
    trace = record_trace(target)
    (folder / "trace").mkdir()
    trace.save(folder / "trace" / "trace.safetensors")
    states = named_states(target, trace.token_ids.tolist())
    stack = torch.stack([states[name] for name in ("boundary:0", "boundary:2", "boundary:3")], dim=1)
    save_file({"token_ids": trace.token_ids, "hidden_states": stack}, folder / "trace" / "states.safetensors")
    shutil.copy(folder / "trace" / "states.safetensors", folder / "trace" / "rank.safetensors")
    for name in CHECKPOINTS:
        shutil.copytree(ROUNDTRIP / "golden" / name, folder / "checkpoint" / name)
    for name in DUMPS:
        shutil.copytree(ROUNDTRIP / "golden_dumps" / name, folder / "dump" / name)
    import_draft(ROUNDTRIP / "golden" / "eagle", folder / "draft", taps=parse_taps(TAPS))
    shutil.copy(folder / "trace" / "trace.safetensors", folder / "draft" / "trace.safetensors")
    export_draft(folder / "draft", "speculators", folder / "checkpoint" / "sidecar")
    sizes = {"num_hidden_layers": 16, "hidden_size": 8, "vocab_size": 24}
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes}))
    for module in HOLDERS:  # one that is imported while the name is patched would keep the patch for good
        importlib.import_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyas.targets.loading.load_target", lambda *arguments, **options: target)
        yield World(folder, tiny_targets("llama"))


def artefact(world: World, case: str) -> Path:
    kind, name = case.split(" ")
    return world.folder / kind / name if kind in ("checkpoint", "dump") else world.folder / kind


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("case", CASES)
def test_a_healthy_artefact_is_understood(world: World, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Golden dumps hold numbers of no target: they are read whole, and then refused for that."""
    status, err = run(world.command(case, artefact(world, case), tmp_path / "out"), capsys)
    assert status == (2 if case.startswith("dump") else 0), err
    assert not case.startswith("dump") or "too few positions" in err or "first token" in err


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=SEEDS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9))
def test_a_changed_artefact_is_answered_or_refused(world: World, case: str, seed: int, tmp_path_factory, capsys) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("changed")
    try:
        path = Path(shutil.copytree(artefact(world, case), folder / "theirs"))
        file = rng.choice(sorted(item for item in path.rglob("*") if item.suffix in BY_ENDING))
        change = rng.choice([*ANY, *BY_ENDING[file.suffix], *BY_ENDING[file.suffix]])
        change(rng, file)
        before = sorted(item.name for item in path.rglob("*"))
        status, err = run(world.command(case, path, folder / "out"), capsys)
        what = f"{change.__name__} of {file.name}: exit {status}\n{err[-3000:]}"
        assert status in (0, 1, 2), what
        assert sorted(item.name for item in path.rglob("*")) == before, what  # also that no code in a pickle ran
        if status == 2:
            assert "error: " in err, what
            assert file.name in err or str(path) in err, what
            assert sorted(item.name for item in folder.iterdir()) == ["theirs"], what
        elif is_draft(folder / "out"):
            read_draft(folder / "out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
