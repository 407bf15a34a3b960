"""Checkpoints that are damaged, hostile or of a kind that is not carried: refused with the file and the key, never run or guessed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import UserError
from eyas.formats import import_draft
from eyas.taps import parse_taps

GOLDEN = Path(__file__).parent.parent / "roundtrip" / "golden"
TAPS = parse_taps("layer:1,layer:7,layer:12")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "specforge", tmp_path / "copy"))


def refused(folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(UserError, match=match):
        import_draft(folder, folder.with_name("out"), **options)
    assert not folder.with_name("out").exists(), "nothing half-written"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_header_of_200_gigabytes(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 200 << 30) + b"{}")
    refused(copy, r"model\.safetensors is not a safetensors file[\s\S]*214748364800")


@pytest.mark.parametrize("size", [0, 5, 100, 5000])
def test_a_file_cut_short(copy: Path, size: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(copy, r"model\.safetensors is (damaged|not a safetensors file)")


def test_a_header_that_is_no_json(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 16) + b"{not json at all" + b"0" * 64)
    refused(copy, r"model\.safetensors is damaged")


def test_a_tensor_that_lies_outside_of_its_file(copy: Path) -> None:
    header = json.dumps({"fc.weight": {"dtype": "F32", "shape": [8, 24], "data_offsets": [0, 768]}}).encode()
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0" * 8)
    refused(copy, r"model\.safetensors is damaged")


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 3, "notes.txt", "a\\b.bin"])
def test_an_index_that_leads_out_of_the_folder(copy: Path, place: object) -> None:
    (copy.parent / "elsewhere.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": place}}))
    refused(copy, r"index\.json: fc\.weight is said to lie outside")


def test_shards_are_read_and_must_hold_what_the_index_says(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, copy / file)
    index = {name: file for file, part in halves.items() for name in part}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert import_draft(copy, copy.with_name("good")).wiring.taps == TAPS
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | {"fc.bias": "model-2.safetensors"}}))
    refused(copy, r"model-2\.safetensors does not hold what the index says[\s\S]*fc\.bias")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (copy / "model-2.safetensors").unlink()
    refused(copy, r"weights are missing: .*model-2")


class Bomb:
    """Runs a command when it is unpickled by a reader that is not careful."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch " + os.environ["EYAS_TEST_MARK"],)


@pytest.mark.parametrize("save", [lambda value, path: torch.save(value, path), lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    monkeypatch.setenv("EYAS_TEST_MARK", str(tmp_path / "mark"))
    save({"fc.weight": Bomb()}, folder / "pytorch_model.bin")
    refused(folder, r"pytorch_model\.bin cannot be read as tensors alone", taps=TAPS)
    assert not (tmp_path / "mark").exists()


class Swollen:
    """Unpickled as a tensor that is larger than the storage that it is made of."""

    def __reduce__(self) -> tuple[Any, ...]:
        storage = torch.storage.TypedStorage(wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, 0, (1 << 20,), (1,), False, OrderedDict())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"fc.weight": torch.zeros(1).expand(10**12)}, "claims more numbers than the file holds"),
        ({"fc.weight": Swollen()}, "not resizable|claims more numbers than the file holds"),
        ({"fc.weight": "a text"}, "is not a plain tensor"),
        ({3: torch.zeros(1)}, "is not a plain tensor"),
        ({"fc.weight": torch.zeros(2, 2).to_sparse()}, "is not a plain tensor|cannot be read"),
        ([torch.zeros(1)], "no table of tensors"),
    ],
    ids=["one number for many", "larger than its storage", "text", "number as key", "sparse", "list"],
)
def test_a_pickle_of_other_things(tmp_path: Path, value: object, message: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    torch.save(value, folder / "pytorch_model.bin")
    refused(folder, message, taps=TAPS)


def test_an_archive_that_grows_when_it_is_opened(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "eagle", tmp_path / "copy"))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/99", b"\0" * (4 << 20))
    refused(folder, r"pytorch_model\.bin claims to hold more than it is long", taps=TAPS)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
def test_something_else_in_the_place_of_a_file(copy: Path, name: str, kind: str) -> None:
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    elif kind == "folder":
        (copy / name).mkdir()
    else:
        (copy / name).symlink_to("/dev/zero" if kind == "device" else name)
    refused(copy, str(name).replace(".", r"\.") + "|no weights that can be told")


def test_a_key_that_is_there_twice(copy: Path) -> None:
    path = copy / "config.json"
    path.write_text(path.read_text().replace("{", '{"hidden_size": 8,', 1))
    refused(copy, r"config\.json[\s\S]*given twice: hidden_size")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "\\ud800"}', "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "\x00"])
def test_a_config_that_is_none(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    refused(copy, r"config\.json")


def test_a_config_of_absurd_size(copy: Path) -> None:
    with open(copy / "config.json", "wb") as stream:
        stream.truncate(1 << 30)
    refused(copy, "too large to be one")


def test_a_folder_without_weights_or_with_several(copy: Path) -> None:
    shutil.copy(copy / "model.safetensors", copy / "a.safetensors")
    shutil.move(copy / "model.safetensors", copy / "b.safetensors")
    refused(copy, "no weights that can be told")
    (copy / "a.safetensors").unlink()
    assert import_draft(copy, copy.with_name("good")).wiring.taps == TAPS
    refused(copy / "config.json", "not a folder")


# -- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["midlayer.hidden_norm.weight"].fill_(float("nan")), r"midlayer\.hidden_norm\.weight holds NaN"),
        (lambda t: t["lm_head.weight"][3, 4:5].fill_(float("inf")), r"lm_head\.weight holds NaN or infinity"),
        (lambda t: t.pop("midlayer.self_attn.v_proj.weight"), r"missing \['midlayer.self_attn.v_proj.weight'\]"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
        (lambda t: t.pop("d2t"), "d2t is missing"),
        (lambda t: t.pop("fc.weight"), r"no fc\.weight"),
        (lambda t: t.update(surprise=torch.zeros(3)), r"not read \['surprise'\]"),
        (lambda t: t.update({"model.fc.weight": t["fc.weight"].clone()}), "model.fc.weight"),
        (lambda t: t.update({"midlayer.mlp.experts.0.up_proj.weight": torch.zeros(3)}), "experts cannot be carried"),
        (lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.zeros(3)}), "several layers cannot be carried"),
        (lambda t: t.update({"norm.weight": torch.zeros(9)}), r"norm\.weight has another shape"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, :-1].clone()}), "no multiple of the target's"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, :16].clone()}), "fc_norm.2.weight"),
        (lambda t: t.update({"norm.weight": torch.zeros(8, dtype=torch.int8)}), "no plain floating-point weight"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(10)), "t2d marks other tokens|out of the target's vocabulary"),
        (lambda t: t.update(d2t=t["d2t"].float()), "no whole numbers"),
        (lambda t: t.update(t2d=~t["t2d"]), "t2d marks other tokens"),
        (lambda t: [t.pop(f"fc_norm.{i}.weight") for i in range(3)], "disagree on fc_norm"),
        (lambda t: t.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.tensor([1.0, 0.5])}), "not the frequencies"),
    ],
)
def test_tensors_that_do_not_fit(copy: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str) -> None:
    change_tensors(copy, change)
    refused(copy, message)


def test_maps_of_other_integers_and_frequencies_that_fit_are_taken_and_said(copy: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update(d2t=tensors["d2t"].int(), t2d=tensors["t2d"].to(torch.uint8))
        tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.tensor([1.0, 1e-3])

    change_tensors(copy, change)
    notes = "\n".join(import_draft(copy, copy.with_name("good")).notes)
    assert "d2t was stored as torch.int32" in notes
    assert "inv_freq was left out" in notes


def test_a_missing_head_of_a_full_vocabulary_is_the_targets_and_said(copy: Path) -> None:
    change_config(copy, draft_vocab_size=24)
    change_tensors(copy, lambda t: [t.pop(name) for name in ("lm_head.weight", "d2t", "t2d")])
    report = import_draft(copy, copy.with_name("good"))
    assert report.wiring.lm_head_source == "target"
    assert any("lm_head_source = target" in line for line in report.assumed)


# -- configs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "several layers"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights"),
        ({"parallel_drafting": True}, "P-EAGLE"),
        ({"mla_use_nope": True}, "without RoPE"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"norm_output": False}, "never normed"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 1]}}, "mrope"),
        ({"rope_scaling": {"rope_type": "nonsense"}}, "no draft can be made"),
        ({"rope_scaling": 3}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e-300}}, "frequencies that are no numbers"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "rope_scaling names two kinds"),
        ({"rope_scaling": {"factor": 2.0}}, "scales RoPE without a kind"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": {"type": "linear", "factor": 4.0}},
            r"other numbers[\s\S]*factor = 2.0 and 4.0",
        ),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"num_aux_hidden_states": 5}, "disagree on num_taps"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"use_input_layernorm_in_first_layer": False}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "no plain EAGLE-3 draft"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, 12], "layer_ids": [2, 8, 13]}}, "twice, and not the same"),
        ({"eagle_config": {}, "target_layer_ids": [2, 8, 13]}, r"names layers under a key[\s\S]*target_layer_ids"),
        ({"num_hidden_layers": "1"}, "num_hidden_layers must be a positive whole number"),
        ({"rope_theta": -1}, "positive number"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 6.0}}, "two thetas"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"type": "dynamic", "factor": 2}}, "two kinds"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"hidden_size": 10**9}, "multiple of the target's|another shape"),
        ({"intermediate_size": 10**12}, "intermediate_size"),
        ({"hidden_size": True}, "."),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"draft_vocab_size": -3}, "draft_vocab_size"),
        ({"fc_norm": "yes"}, "fc_norm must be true or false"),
        ({"norm_before_fc": True}, "disagree on norm_before_fc"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"eagle_config": 3}, "eagle_config must be an object"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, "12"]}}, "must be a list of layer ids"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, 7]}}, "named twice"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-2, 7, 12]}}, "means no state"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7]}}, "another number of states"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 13]}, "twice, and not the same"),
        ({"architectures": ["GPT2LMHeadModel"], "hidden_act": "nonsense"}, "."),
    ],
)
def test_configs_that_cannot_be_carried(copy: Path, changes: dict[str, Any], message: str) -> None:
    change_config(copy, **changes)
    refused(copy, message)


@pytest.mark.parametrize("key", ["quantization_config", "parallel_drafting"])
def test_what_speculators_says_beside_the_layer(tmp_path: Path, key: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / "speculators", tmp_path / "copy"))
    change_config(folder, **{key: {"quant_method": "compressed-tensors"} if key == "quantization_config" else True})
    refused(folder, key)


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module.draft_model."])
@pytest.mark.parametrize("head", [True, False])
def test_a_wrappers_prefix_is_taken_off_and_said(copy: Path, prefix: str, head: bool) -> None:
    expected = load_file(copy / "model.safetensors")["fc.weight"]

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in sorted(tensors):
            if head or name not in ("lm_head.weight", "d2t", "t2d"):
                tensors[prefix + name] = tensors.pop(name)

    change_tensors(copy, wrap)
    report = import_draft(copy, copy.with_name("good"))
    assert report.source == "specforge"
    assert any(f"prefix {prefix}" in note for note in report.notes)
    assert torch.equal(load_file(copy.with_name("good") / "model.safetensors")["fc.weight"], expected)


def test_torchspecs_meaning_is_seen_behind_a_prefix(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "torchspec", tmp_path / "copy"))
    change_tensors(folder, lambda t: [t.update({"draft_model." + name: t.pop(name)}) for name in sorted(t)])
    assert import_draft(folder, tmp_path / "good").wiring.taps == TAPS


def test_ids_for_vllm_alone_are_boundaries_and_said(copy: Path) -> None:
    change_config(copy, eagle_config={"layer_ids": [2, 8, 13]})
    report = import_draft(copy, copy.with_name("good"))
    assert report.wiring.taps == TAPS
    assert any("vLLM alone reads eagle_config.layer_ids" in line for line in report.assumed)


def test_what_is_beside_and_not_read_is_said(copy: Path) -> None:
    change_config(copy, target_layer_ids=[3, 9, 14], attention_bias=True)
    torch.save({}, copy / "pytorch_model.bin")
    notes = "\n".join(import_draft(copy, copy.with_name("good")).notes)
    assert "target_layer_ids = [3, 9, 14] of config.json was not read" in notes
    assert "pytorch_model.bin was not read, but model.safetensors" in notes
    assert "attention_bias is True" in notes and "the weights have none" in notes


def test_a_map_that_could_hold_ids_is_doubted_where_nothing_tells(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "modelopt", tmp_path / "copy"))
    assert not any("d2t" in line for line in import_draft(folder, tmp_path / "plain").assumed)
    change_config(folder, vocab_size=48)
    change_tensors(folder, lambda t: t.update(d2t=t["d2t"] + torch.arange(10)))
    assert any("d2t = offsets" in line for line in import_draft(folder, tmp_path / "doubted").assumed)


def test_another_kind_of_speculator(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "speculators", tmp_path / "copy"))
    change_config(folder, speculators_model_type="dflash")
    refused(folder, "no EAGLE-3 draft")
    change_config(folder, speculators_model_type="eagle3", transformer_layer_config=...)
    refused(folder, "transformer_layer_config is missing")


def test_folders_of_no_known_project(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["BertModel"]}')
    save_file({"embeddings.weight": torch.zeros(3)}, tmp_path / "model" / "model.safetensors")
    refused(tmp_path / "model", "cannot be told")
    refused(tmp_path / "model", "no such format", source="onnx")
    refused(tmp_path / "model", "no such tensors|no fc.weight", source="eagle")
