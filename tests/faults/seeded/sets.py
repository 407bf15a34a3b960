"""A healthy set: a trained tiny target, chats that it answered, a dump of them, and a draft trained on it for seconds.

Three families, each with other switches of the draft, so that a switch has both its values somewhere. RoPE's theta is
not 10000, or a reader that falls back to 10000 would be right.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from eyas.capture.corpus import read_corpus
from eyas.capture.job import CaptureSettings
from eyas.capture.runner import capture_to_dump
from eyas.data.chats import Chat
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.regenerate import regenerate
from eyas.data.store import Dump
from eyas.doctor.exhibits import Exhibits
from eyas.taps import parse_taps
from eyas.targets import tiny
from eyas.targets.generate import BatchSettings
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny_text import tiny_chats
from eyas.train.loop import Trainer
from eyas.train.settings import TrainSettings

THETA = 500000.0
TAPS = parse_taps("layer:0,layer:1,layer:2")
SWITCHES: dict[str, dict[str, bool]] = {
    "llama": {},
    "qwen3": {"norm_before_residual": True},
    "deepseek_v3": {"norm_output": True},
}
FAMILIES = tuple(SWITCHES)
ALL_GIVEN = ("target", "draft", "dump", "data")
NUM_CHATS, DRAFT_VOCAB, DRAFT_STEPS = 240, 320, 110


@dataclass(frozen=True)
class Set:
    """What a doctor may be given, and the folder in which faults of it may be written. `given` names what it is given."""

    family: str
    target: Path
    draft: Path
    dump: Path
    data: Path
    work: Path
    metrics: Path | None = None
    log: Path | None = None
    engine: str | None = None
    given: tuple[str, ...] = ALL_GIVEN

    def but(self, **changes: object) -> Set:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def exhibits(self) -> Exhibits:
        """Metrics, log and engine are given wherever the set has them."""
        held = {name: getattr(self, name) for name in self.given}
        target = held.pop("target", None)
        return Exhibits(target=None if target is None else str(target), metrics=self.metrics, log=self.log, engine=self.engine, **held)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    return load_target(str(folder), device=torch.device("cpu"), dtype=dtype)


def make_set(family: str, folder: Path) -> None:
    """Write target, chats.jsonl, dump and draft below `folder`; half a minute of one core."""
    with mock.patch.dict(tiny._COMMON, rope_parameters={"rope_type": "default", "rope_theta": THETA}):
        tiny.make_tiny(family, folder / "target", trained=True, seed=3, training=tiny.TinyTraining(num_steps=150))
    target = load(folder / "target")
    answered = own_answers(target, NUM_CHATS, 41, folder / "answers")
    write_chats(folder / "chats.jsonl", answered)
    make_dump(target, folder / "target", folder / "chats.jsonl", folder / "dump")
    train_draft(target, folder / "dump", folder / "draft", SWITCHES[family])


def own_answers(target: Target, count: int, seed: int, journal: Path) -> list[Chat]:
    """Chats of the tiny world with the target's own greedy answers."""
    asked = [Chat(f"chat-{number}", tuple(chat)) for number, chat in enumerate(tiny_chats(count, seed=seed))]
    answered, _ = regenerate(target, asked, journal, BatchSettings(max_new_tokens=48), 512)
    return answered


def write_chats(path: Path, chats: list[Chat]) -> None:
    path.write_text("".join(json.dumps({"messages": list(chat.messages)}) + "\n" for chat in chats))


def make_dump(target: Target, folder: Path, chats: Path, out: Path, taps: str = "layer:0,layer:1,layer:2") -> None:
    prepared = out.with_name(out.name + "-prepared")
    prepare(str(folder), [chats], prepared, PrepareSettings(validation=0.1))
    settings = CaptureSettings(taps=parse_taps(taps), max_batch_tokens=2048, shard_bytes=1 << 21)
    capture_to_dump(target, read_corpus(prepared, str(folder), False), settings, out)
    shutil.rmtree(prepared)


def train_draft(target: Target, dump: Path, out: Path, switches: dict[str, bool], steps: int = DRAFT_STEPS, **more: object) -> None:
    """fc starts at random, so that every slot matters; from the usual start the last one would say nearly all."""
    trainer = _trainer(target, dump, out, switches, steps, more)
    generator = torch.Generator().manual_seed(1)
    weight = trainer.draft.fc.weight
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)
    trainer.run()


def begin_draft(target: Target, dump: Path, out: Path, switches: dict[str, bool], steps: int) -> None:
    """A draft that was hardly trained, from the usual start: it passes states on to the head."""
    _trainer(target, dump, out, switches, steps, {}).run()


def _trainer(target: Target, dump: Path, out: Path, switches: dict[str, bool], steps: int, more: dict[str, object]) -> Trainer:
    chosen = {"ttt_steps": 3, "learning_rate": 4e-3, "dtype": "float32", "tokens_per_batch": 1024, "draft_vocab_size": DRAFT_VOCAB}
    settings = TrainSettings(steps=steps, **{**chosen, **switches, **more})  # type: ignore[arg-type]
    return Trainer(target, Dump.open(dump), settings, out)
