"""Drafts of every shape that `eyas train` makes, for a target like Kimi-K2.5: trained, loaded, exported and decoded with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eyas.capture.corpus import read_corpus
from eyas.capture.job import CaptureSettings
from eyas.capture.runner import capture_to_dump
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.store import Dump
from eyas.draft.checkpoint import load_draft, read_draft
from eyas.draft.config import DraftConfig
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.engines.export import export_for_engine
from eyas.errors import UserError
from eyas.formats.importing import import_draft
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny_text import tiny_chats
from eyas.train.loop import Trainer
from eyas.train.settings import TrainSettings

CPU = torch.device("cpu")
TAPS = parse_taps("layer:0,layer:1,layer:2")


@pytest.fixture(scope="module")
def kimi(tiny_targets) -> Path:
    return tiny_targets("kimi_k25")


@pytest.fixture(scope="module")
def target(kimi: Path) -> Target:
    return load_target(str(kimi), device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def dump(kimi: Path, target: Target, tmp_path_factory) -> Dump:
    folder = tmp_path_factory.mktemp("kimi")
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(16, seed=7)))
    prepare(str(kimi), [folder / "chats.jsonl"], folder / "prepared", PrepareSettings(validation=0.1))
    capture_to_dump(target, read_corpus(folder / "prepared", str(kimi), False), CaptureSettings(taps=TAPS), folder / "dump")
    return Dump.open(folder / "dump")


@pytest.mark.parametrize(("head", "hidden_size"), [("llama", None), ("mla", None), ("llama", 32), ("mla", 48)])
def test_a_trained_draft_is_loaded_exported_and_decodes_losslessly(
    target: Target, kimi: Path, dump: Dump, tmp_path: Path, head: str, hidden_size: int | None
) -> None:
    settings = TrainSettings(steps=3, tokens_per_batch=512, dtype="float32", head=head, hidden_size=hidden_size)
    Trainer(target, dump, settings, tmp_path / "draft").run()
    draft = load_draft(tmp_path / "draft", target, torch.float32).draft
    config = draft.config
    assert (config.hidden_size, config.own_embedding) == (hidden_size or 64, hidden_size is not None)
    assert (config.mla is not None) == (head == "mla")

    export_for_engine(tmp_path / "draft", "vllm", "0.33.0", kimi, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["Eagle3DeepseekV2ForCausalLM" if head == "mla" else "LlamaForCausalLMEagle3"]
    assert (written["hidden_size"], written["target_hidden_size"]) == (config.hidden_size, 64)
    if head == "mla":
        assert written["rope_parameters"] == target.config.rope_parameters, "YaRN goes along: it scales the scores"
    import_draft(tmp_path / "out", tmp_path / "back")
    back = read_draft(tmp_path / "back").draft
    assert back.config.mla == config.mla
    for name, tensor in read_draft(tmp_path / "draft").draft.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name

    prompt = list(range(4, 24))
    alone = target.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)[0, len(prompt) :].tolist()
    with Engine(target, draft, TAPS) as engine:
        assert list(engine.generate([prompt], SamplingParams(12))[0].tokens) == alone


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [("llama", {"head": "mla"}, "has none"), ("kimi_k25", {"head": "gqa"}, "unknown --head")],
)
def test_a_head_that_the_target_does_not_give_is_refused(tiny_targets, family: str, options: dict[str, str], message: str) -> None:
    text = load_target(str(tiny_targets(family)), device=CPU, dtype=torch.float32).config
    with pytest.raises(UserError, match=message):
        DraftConfig.from_target(text, num_taps=3, draft_vocab_size=64, **options)
