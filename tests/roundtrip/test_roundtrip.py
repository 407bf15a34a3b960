"""Eyas -> format -> Eyas gives back every tensor bit for bit, the same config and the same wiring, whatever the draft."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.capture.fingerprint import SKETCH_SIZE, Trace
from eyas.capture.rounding import Look
from eyas.draft.checkpoint import draft_wiring_fields, read_draft, save_draft
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError, WiringError
from eyas.formats import ConfigChanges, export_draft, import_draft
from eyas.formats.registry import FORMATS
from eyas.formats.sidecar import SIDECAR
from eyas.taps import Tap, parse_taps
from eyas.wiring import Wiring

VOCAB, LAYERS = 24, 12
ROPES = [
    {"rope_type": "default", "rope_theta": 1e4},
    {"rope_type": "default", "rope_theta": 5e5},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0},
]
QUICK = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def drafts(draw: Any) -> tuple[DraftConfig, tuple[Tap, ...], torch.dtype]:
    flag = st.booleans()
    own = draw(flag)
    full = draw(flag)
    wide = own and draw(flag)
    heads = ["draft"] + (["embedding"] if own and full else []) + (["target"] if full and not wide else [])
    mla = draw(st.sampled_from([None, None, 4, "whole"]))
    latent = MlaConfig(7, 4, 2, 6, None if mla == "whole" else 5, draw(flag), draw(st.sampled_from([1.0, 1.25])))
    taps = draw(st.lists(st.integers(0, LAYERS), min_size=1, max_size=4, unique=True))
    config = DraftConfig(
        hidden_size=12 if wide else 8,
        target_hidden_size=8,
        num_taps=len(taps),
        intermediate_size=10,
        num_attention_heads=2,
        num_key_value_heads=2 if mla else draw(st.sampled_from([1, 2])),
        head_dim=latent.qk_head_dim if mla else draw(st.sampled_from([4, 6, 10])),
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB if full else 10,
        rope_parameters=draw(st.sampled_from(ROPES)),
        max_position_embeddings=64,
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6, 9.999999747378752e-06])),
        norm_before_fc=draw(flag),
        fc_norm=draw(flag),
        norm_before_residual=draw(flag),
        norm_output=draw(flag),
        mla=latent if mla else None,
        own_embedding=own,
        lm_head_source=draw(st.sampled_from(heads)),
        fc_bias=draw(flag),
        attention_bias=not mla and draw(flag),
        mlp_bias=draw(flag),
        qk_norm=not mla and draw(flag),
    )
    return config, tuple(Tap(boundary) for boundary in taps), draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))


def make(folder: Path, config: DraftConfig, taps: tuple[Tap, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Wiring:
    generator = torch.Generator().manual_seed(seed)
    draft = Eagle3Draft(config).to(dtype)
    for parameter in draft.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    draft.norm.float()  # a file may hold several dtypes
    if not config.full_vocabulary:
        ids = torch.randperm(VOCAB, generator=generator)[: config.draft_vocab_size].sort().values
        draft.set_vocab_map(ids - torch.arange(len(ids)), torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True))
    wiring = Wiring(
        taps=taps,
        num_target_layers=LAYERS,
        target_hidden_size=config.target_hidden_size,
        target_vocab_size=VOCAB,
        tokenizer_hash="a" * 64,
        target_name="some/target",
        ttt_steps=3,
        teacher=Tap(None),
        teacher_verified=True,
        **draft_wiring_fields(draft),
    )
    save_draft(folder, draft, wiring, None, "card", dtype=None)
    return wiring


def assert_equal(one: Path, other: Path) -> None:
    left, right = read_draft(one), read_draft(other)
    assert left.wiring == right.wiring
    assert left.draft.config == right.draft.config
    tensors = right.draft.state_dict()
    assert left.draft.state_dict().keys() == tensors.keys()
    for name, tensor in left.draft.state_dict().items():
        assert tensor.dtype == tensors[name].dtype, name
        assert torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("name", FORMATS)
@QUICK
@given(made=drafts())
def test_round_trip(name: str, made: tuple[DraftConfig, tuple[Tap, ...], torch.dtype]) -> None:
    config, taps, dtype = made
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        make(base / "draft", config, taps, dtype)
        if FORMATS[name].refuse(config):
            with pytest.raises(UserError, match="cannot have a draft with"):
                export_draft(base / "draft", name, base / "out")
            return
        exported = export_draft(base / "draft", name, base / "out")
        assert sorted(exported.written) == ["config.json", SIDECAR, "model.safetensors"]
        imported = import_draft(base / "out", base / "back")
        assert imported.source == name
        assert imported.assumed == []
        assert_equal(base / "draft", base / "back")


PLAIN = DraftConfig(8, 8, 3, 10, 2, 1, 4, VOCAB, 10, dict(ROPES[0]), 64)
TAPS = parse_taps("layer:1,layer:5,layer:8")


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].ids_mean])
def test_a_plain_draft_needs_no_file_beside_it(name: str, tmp_path: Path) -> None:
    """Then all that is missing is what only the target and the training know."""
    wiring = make(tmp_path / "draft", PLAIN, TAPS)
    export_draft(tmp_path / "draft", name, tmp_path / "out")
    (tmp_path / "out" / SIDECAR).unlink()
    back = import_draft(tmp_path / "out", tmp_path / "back", source=name).wiring
    assert back.diff(wiring) == ()
    assert back.taps == TAPS
    assert read_draft(tmp_path / "back").draft.config == PLAIN


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_project_cannot_run_is_said(name: str, tmp_path: Path) -> None:
    make(tmp_path / "draft", dataclasses.replace(PLAIN, norm_before_residual=True, norm_output=True), parse_taps("embed,layer:5,layer:8"))
    notes = "\n".join(export_draft(tmp_path / "draft", name, tmp_path / "out").notes)
    assert ("norm_before_residual" in notes) == (name != "speculators")
    assert ("norm_output" in notes) == (name not in ("speculators", "automodel"))
    assert ("layer id -1" in notes) == (FORMATS[name].ids_mean == "output")
    assert (SIDECAR in notes) == (name in ("eagle", "automodel"))


@pytest.mark.parametrize("name", FORMATS)
def test_no_layer_id_means_the_final_state(name: str, tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, parse_taps("layer:1,layer:5,final"))
    if FORMATS[name].ids_mean is None:
        export_draft(tmp_path / "draft", name, tmp_path / "out")
        import_draft(tmp_path / "out", tmp_path / "back")
        assert_equal(tmp_path / "draft", tmp_path / "back")
    else:
        with pytest.raises(UserError, match="no layer id"):
            export_draft(tmp_path / "draft", name, tmp_path / "out")


def edited(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 1, "num_key_value_heads": 1}, "num_attention_heads"),
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps"),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, "rope_parameters"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"fc_norm": True}, "fc_norm"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}}, "ids"),
    ],
)
def test_a_config_edited_behind_the_wiring_is_found_out(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, TAPS)
    export_draft(tmp_path / "draft", "specforge", tmp_path / "out")
    edited(tmp_path / "out" / "config.json", change)
    with pytest.raises(UserError, match=message):
        import_draft(tmp_path / "out", tmp_path / "back")


def test_a_wiring_edited_or_of_other_weights_is_found_out(tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, TAPS)
    export_draft(tmp_path / "draft", "automodel", tmp_path / "out")
    file = tmp_path / "out" / SIDECAR
    good = json.loads(file.read_text())
    edited(file, {"wiring": good["wiring"] | {"taps": ["embed", "layer:5", "layer:8"]}})
    with pytest.raises(WiringError, match="is not the wiring"):
        import_draft(tmp_path / "out", tmp_path / "back")
    edited(file, {"wiring": good["wiring"] | {"norm_output": True}})
    with pytest.raises(WiringError, match="norm_output"):
        import_draft(tmp_path / "out", tmp_path / "back")
    edited(file, {"wiring": good["wiring"], "more": 1})
    with pytest.raises(UserError, match="edited"):
        import_draft(tmp_path / "out", tmp_path / "back")


def test_keys_for_an_engine_are_written_and_not_taken_for_the_formats_own(tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, TAPS)
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], "layer_ids": [2, 6, 9]}
    changes = ConfigChanges(top={"torch_dtype": "bfloat16"}, eagle_config=ids, removed=("mlp_bias",))
    report = export_draft(tmp_path / "draft", "specforge", tmp_path / "out", changes=changes)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_config"] == ids
    assert config["torch_dtype"] == "bfloat16"
    assert "mlp_bias" not in config
    assert any("one engine" in line for line in report.notes)
    import_draft(tmp_path / "out", tmp_path / "back")
    assert_equal(tmp_path / "draft", tmp_path / "back")


def make_trace(seed: int) -> Trace:
    names = tuple(f"boundary:{number}" for number in range(LAYERS + 1))
    sketches = torch.randn(len(names), 128, SKETCH_SIZE, generator=torch.Generator().manual_seed(seed))
    ids, look = torch.arange(128) % VOCAB, Look("float32", "float32")
    return Trace(ids, sketches, ids, {}, names, "float32", "float32", look, num_layers=LAYERS, hidden_size=8, vocab_size=VOCAB)


def test_a_trace_beside_the_checkpoint_is_the_wirings_own(tmp_path: Path) -> None:
    wiring = make(tmp_path / "draft", PLAIN, TAPS).replace(trace_hash=make_trace(0).hash())
    make_trace(seed=0).save(tmp_path / "trace")
    save_draft(tmp_path / "traced", read_draft(tmp_path / "draft").draft, wiring, tmp_path / "trace", "card", dtype=None)
    export_draft(tmp_path / "traced", "speculators", tmp_path / "out")
    assert import_draft(tmp_path / "out", tmp_path / "back").wiring == wiring
    make_trace(seed=1).save(tmp_path / "out" / "eyas_trace.dat")
    with pytest.raises(UserError, match=r"eyas_trace\.dat is not the trace"):
        import_draft(tmp_path / "out", tmp_path / "again")
    (tmp_path / "out" / "eyas_trace.dat").write_bytes(b"any bytes")
    with pytest.raises(UserError, match=r"eyas_trace\.dat"):
        import_draft(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_trace_travels_where_no_engine_takes_it_for_weights(tmp_path: Path) -> None:
    wiring = make(tmp_path / "draft", PLAIN, TAPS)
    make_trace(seed=0).save(tmp_path / "trace")
    save_draft(tmp_path / "traced", read_draft(tmp_path / "draft").draft, wiring, tmp_path / "trace", "card", dtype=None)
    report = export_draft(tmp_path / "traced", "eagle", tmp_path / "out")
    assert [name for name in report.written if name.endswith((".safetensors", ".bin", ".pt"))] == ["model.safetensors"]
    import_draft(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "trace.safetensors").read_bytes() == (tmp_path / "trace").read_bytes()


def test_an_export_replaces_an_export_and_nothing_else(tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, TAPS)
    export_draft(tmp_path / "draft", "eagle", tmp_path / "out")
    assert "midlayer" not in "".join(export_draft(tmp_path / "draft", "speculators", tmp_path / "out").notes)
    (tmp_path / "other").mkdir()
    for folder in ("other", "out"):
        (tmp_path / folder / "thesis.txt").write_text("years of work")
        with pytest.raises(UserError, match="not empty"):
            export_draft(tmp_path / "draft", "eagle", tmp_path / folder)
        assert (tmp_path / folder / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UserError, match="no such format"):
        export_draft(tmp_path / "draft", "onnx", tmp_path / "more")


def test_an_import_replaces_nothing(tmp_path: Path) -> None:
    make(tmp_path / "draft", PLAIN, TAPS)
    export_draft(tmp_path / "draft", "eagle", tmp_path / "out")
    trained = (tmp_path / "draft" / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="not empty"):
        import_draft(tmp_path / "out", tmp_path / "draft")
    assert (tmp_path / "draft" / "model.safetensors").read_bytes() == trained
