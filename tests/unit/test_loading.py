"""What is wrong with a target's folder, a hub id or a device is said in words, whatever transformers makes of it."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import UserError
from eyas.targets import loading
from eyas.targets.devices import resolve_device
from eyas.targets.loading import load_config, load_stop_ids, load_target, load_tokenizer, tokenizer_hash

CPU = torch.device("cpu")
CONFIGS: dict[str, dict[str, object]] = {
    "text": {"num_hidden_layers": "four"},
    "zero": {"hidden_size": 0},
    "negative": {"num_hidden_layers": -1},
    "null": {"vocab_size": None},
    "unknown model": {"model_type": "nonsense"},
    "not a decoder": {"model_type": "bert"},
    "other sizes": {"hidden_size": 32},
    "fewer layers": {"num_hidden_layers": 3},
    "activation": {"hidden_act": "nonsense"},
    "rope": {"rope_parameters": "x"},
    "no positions": {"max_position_embeddings": 0},
}


@pytest.fixture
def folder(tmp_path: Path, tiny_targets) -> Path:
    return Path(shutil.copytree(tiny_targets("llama"), tmp_path / "target"))


def load(folder: Path) -> None:
    load_target(str(folder), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("edit", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_makes_no_model_is_refused(folder: Path, edit: dict[str, object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | edit))
    with pytest.raises(UserError):
        load(folder)


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "vocab_size", "num_key_value_heads", "max_position_embeddings"])
@pytest.mark.parametrize("size", [10**12, 10**5000], ids=["large", "endless"])
def test_a_size_that_no_model_has_is_refused_before_transformers_reads_it(folder: Path, monkeypatch, name: str, size: int) -> None:
    sys.set_int_max_str_digits(0)
    try:
        (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | {name: size}))
    finally:
        sys.set_int_max_str_digits(4300)
    monkeypatch.setattr(loading, "_own_config", lambda *arguments: pytest.fail("transformers read it"))
    with pytest.raises(UserError) as caught:
        load_config(str(folder))
    assert "set_int_max_str_digits" not in str(caught.value)
    if size == 10**12:
        assert f"{name} = {size}" in str(caught.value)


def test_a_file_is_not_said_to_be_missing(folder: Path) -> None:
    with pytest.raises(UserError, match="is a file, not a target's folder"):
        load_config(str(folder / "config.json"))


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, weight: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = weight
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="not finite") as caught:
        load(folder)
    assert "norm.weight" in str(caught.value.got)


def test_a_generation_config_that_cannot_be_read_is_refused(folder: Path) -> None:
    """Without the end-of-turn tokens that it names, answers would go on behind the target's own."""
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, ')
    with pytest.raises(UserError, match=r"generation_config\.json"):
        load(folder)
    with pytest.raises(UserError, match=r"generation_config\.json"):
        load_stop_ids(str(folder), load_tokenizer(str(folder)))


def test_without_a_generation_config_the_config_says_where_an_answer_ends(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    assert load_stop_ids(str(folder), tokenizer) == (7,)


def test_a_pickled_checkpoint_is_not_read(folder: Path) -> None:
    """Not even beside a safetensors file of something else."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "adapter.safetensors")
    with pytest.raises(UserError, match="cannot load the target's weights"):
        load(folder)


@pytest.mark.parametrize(
    "index", ["{}", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "gone.safetensors"}}']
)
def test_an_index_that_names_no_files_is_refused(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError):
        load(folder)


@pytest.mark.parametrize("name", ["cpu:x", "cuda:x", "gpu", ""])
def test_a_device_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="--device"):
        resolve_device(name)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def silent(url: str, **options: object) -> None:
        asked.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr(loading, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "get_hf_file_metadata", silent)
    with pytest.raises(UserError, match="the hub does not answer") as caught:
        load_config("nobody/nothing")
    assert caught.value.got == "no route"
    assert len(asked) == 1


def test_a_model_published_under_a_name_of_its_own_is_what_transformers_calls_it(tmp_path: Path, tiny_targets) -> None:
    """Kimi-K2's config says kimi_k2 and names code to run; its architecture is DeepSeek-V3's."""
    folder = Path(shutil.copytree(tiny_targets("deepseek_v3"), tmp_path / "kimi"))
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "configuration_deepseek.DeepseekV3Config", "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "kimi_k2", "auto_map": auto_map}))
    renamed = load_target(str(folder), device=CPU, dtype=torch.float32)
    plain = load_target(str(tiny_targets("deepseek_v3")), device=CPU, dtype=torch.float32)
    ids_BT = torch.arange(4, 40)[None]
    with torch.no_grad():
        assert torch.equal(renamed.model(ids_BT).logits, plain.model(ids_BT).logits)


def ranks(texts: list[bytes]) -> bytes:
    """A tiktoken file."""
    return b"".join(base64.b64encode(text) + b" %d\n" % rank for rank, text in enumerate(texts))


@pytest.fixture
def without_tokenizer_json(folder: Path) -> Path:
    (folder / "tokenizer.json").unlink()
    config = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        "eos_token": "<end>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model"])
def test_a_tokenizer_whose_pattern_stands_in_code_is_refused_without_that_code(without_tokenizer_json: Path, name: str) -> None:
    """transformers would take the file, and cut texts by another pattern."""
    (without_tokenizer_json / name).write_bytes(ranks([bytes([byte]) for byte in range(256)]))
    with pytest.raises(UserError, match="tiktoken file") as caught:
        load(without_tokenizer_json)
    assert "--trust-remote-code" in str(caught.value.remedy)
    assert name in str(caught.value.got)


def test_that_code_is_run_when_the_user_allows_it(without_tokenizer_json: Path) -> None:
    folder = without_tokenizer_json
    (folder / "tiktoken.model").write_bytes(ranks([bytes([byte]) for byte in range(256)]))
    (folder / "tokenization_own.py").write_text(OWN_TOKENIZER)
    target = load_target(str(folder), device=CPU, dtype=torch.float32, trust_remote_code=True)
    assert target.tokenizer.encode("hi", add_special_tokens=False) == [104, 105]
    assert target.tokenizer_hash == tokenizer_hash(load_tokenizer(str(folder), trust_remote_code=True))


OWN_TOKENIZER = """
import base64
from transformers import PythonBackend

class OwnTokenizer(PythonBackend):
    vocab_files_names = {"vocab_file": "tiktoken.model"}

    def __init__(self, vocab_file, **kwargs):
        lines = open(vocab_file, "rb").read().splitlines()
        self.ids = {base64.b64decode(line.split()[0]).decode("latin-1"): int(line.split()[1]) for line in lines}
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return len(self.ids)

    def get_vocab(self):
        return {**self.ids, **self.added_tokens_encoder}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.ids[token]

    def _convert_id_to_token(self, index):
        return next(token for token, held in self.ids.items() if held == index)
"""
