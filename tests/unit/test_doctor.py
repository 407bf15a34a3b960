"""The doctor's own parts, without a model: the catalogue and its pages, what is said of files alone, and how findings are told."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.doctor import diagnose, runner
from eyas.doctor.catalog import CATALOG, KINDS
from eyas.doctor.checks import all_hypotheses
from eyas.doctor.examination import Examination
from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.hypothesis import DEPTHS, Diagnosis, Evidence, Fault, Outcome
from eyas.doctor.opening.draft import eyas_name
from eyas.doctor.opening.headers import read_header
from eyas.doctor.planning import plan
from eyas.doctor.runner import merge
from eyas.doctor.signatures import suspects
from eyas.errors import UserError

ROOT = Path(__file__).parents[2]
STATIC = Options(depths=("static",))
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": 32,
    "draft_vocab_size": 16,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    "torch_dtype": "float32",
}
LAYER = {
    "hidden_norm.weight": [8],
    "input_layernorm.weight": [8],
    "post_attention_layernorm.weight": [8],
    "self_attn.q_proj.weight": [8, 16],
    "self_attn.k_proj.weight": [4, 16],
    "self_attn.v_proj.weight": [4, 16],
    "self_attn.o_proj.weight": [8, 8],
    "mlp.gate_proj.weight": [16, 8],
    "mlp.up_proj.weight": [16, 8],
    "mlp.down_proj.weight": [8, 16],
}
SHAPES = {f"midlayer.{name}": shape for name, shape in LAYER.items()} | {
    "fc.weight": [8, 24],
    "norm.weight": [8],
    "lm_head.weight": [16, 8],
    "d2t": [16],
    "t2d": [32],
}


def write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file of zeros, by hand."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size, dtype = (8, "I64") if name == "d2t" else (1, "BOOL") if name == "t2d" else (4, "F32")
        length = size
        for part in shape:
            length *= part
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        end += length
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def draft(folder: Path, without: tuple[str, ...] = (), shapes: dict[str, list[int]] | None = None, **changes: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({key: value for key, value in {**CONFIG, **changes}.items() if key not in without}))
    write_weights(folder / "model.safetensors", SHAPES if shapes is None else shapes)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    sizes = {"num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 32, "max_position_embeddings": 64, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes}))
    write_weights(folder / "model.safetensors", {"model.embed_tokens.weight": [32, 8], "lm_head.weight": [32, 8], "model.norm.weight": [8]})
    return folder


def codes(found: Diagnosis) -> list[str]:
    return [finding.code for finding in found.findings]


def test_every_code_has_a_page_and_every_page_a_code():
    pages = {path.stem for path in (ROOT / "docs" / "doctor").glob("*.md")}
    assert pages == set(CATALOG)
    for code, row in CATALOG.items():
        text = (ROOT / "docs" / "doctor" / f"{code}.md").read_text(encoding="utf-8")
        assert row.title in text and f"Kind {row.kind}" in text
        for part in ("**Symptom.**", "**How it shows.**", "**Cause.**", "**Fix.**", "**How to prevent it.**"):
            assert part in text, (code, part)


def test_every_kind_has_codes_and_a_hypothesis():
    assert {row.kind for row in CATALOG.values()} == set(KINDS) == set("ABCDEFGHIJKLMNOPQRS")
    assert {item.kind for item in all_hypotheses()} == set(KINDS)
    assert {item.depth for item in all_hypotheses()} == set(DEPTHS)


def test_files_alone_are_judged_without_torch_and_at_once(tmp_path: Path, target: Path):
    folder = draft(tmp_path / "draft")
    code = (
        "import sys, time; from pathlib import Path; started = time.process_time()\n"
        "from eyas.doctor import diagnose; from eyas.doctor.exhibits import Exhibits, Options\n"
        f"found = diagnose(Exhibits(target={str(target)!r}, draft=Path({str(folder)!r})), Options(depths=('static',)))\n"
        "print('torch' in sys.modules, time.process_time() - started < 2, [one.code for one in found.findings])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    assert done.stdout.strip() == "False True []", done.stdout + done.stderr


def test_a_whole_draft_has_no_finding_and_no_verdict_by_files_alone(tmp_path: Path, target: Path):
    found = diagnose(Exhibits(target=str(target), draft=draft(tmp_path / "draft")), STATIC)
    assert codes(found) == []
    assert found.verdict == "inconclusive"
    assert found.exit_status == 0
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["hypotheses"]


def test_a_target_that_is_nowhere_is_refused_and_a_shallow_look_says_so(tmp_path: Path, target: Path):
    with pytest.raises(UserError, match="neither a folder nor"):
        diagnose(Exhibits(target="nothing", draft=draft(tmp_path / "draft")), STATIC)
    found = diagnose(Exhibits(target=str(target), draft=draft(tmp_path / "other")), STATIC)
    assert "takes --depth replay" in found.summary


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("taps-undeclared", {"without": ("eagle_config",)}),
        ("taps-impossible", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}),
        ("taps-impossible", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}),
        ("norm-flags", {"norm_before_fc": True}),
        ("head-shape", {"num_attention_heads": 4}),
        ("architecture", {"num_hidden_layers": 2}),
        ("rope-schema", {"rope_theta": 5000.0}),
        ("rope-range", {"max_position_embeddings": 16}),
        ("map-missing", {"shapes": {name: shape for name, shape in SHAPES.items() if name not in ("d2t", "t2d")}}),
        ("map-broken", {"shapes": SHAPES | {"d2t": [12]}}),
        ("head-missing", {"shapes": {name: shape for name, shape in SHAPES.items() if name != "lm_head.weight"}}),
        ("config-broken", {"use_cache": None}),
        ("keys-differ", {"shapes": SHAPES | {"midlayer.gate.weight": [8, 8]}}),
        ("keys-differ", {"shapes": {name: shape for name, shape in SHAPES.items() if "v_proj" not in name}}),
        ("shape-differs", {"intermediate_size": 24}),
        ("tie-flag", {"tie_word_embeddings": True}),
        ("dtype-differs", {"torch_dtype": "bfloat16"}),
        ("other-target", {"vocab_size": 40, "shapes": SHAPES | {"t2d": [40]}}),
        ("quantization-config", {"quantization_config": {"quant_method": "fp8"}}),
        ("scales-unread", {"shapes": SHAPES | {"midlayer.self_attn.q_proj.weight_scale": [8]}}),
    ],
)
def test_a_fault_that_shows_in_files_is_named_first(code: str, changes: dict[str, object], tmp_path: Path, target: Path):
    found = diagnose(Exhibits(target=str(target), draft=draft(tmp_path / "draft", **changes)), STATIC)  # type: ignore[arg-type]
    assert codes(found)[:1] == [code], codes(found)
    assert found.verdict == "fault"
    assert found.exit_status == 1
    assert found.findings[0].evidence[0].text and found.findings[0].remedy


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"hidden_size": "8"}'])
def test_a_damaged_config_is_a_finding(content: bytes, tmp_path: Path, target: Path):
    folder = draft(tmp_path / "draft")
    (folder / "config.json").write_bytes(content)
    assert "config-broken" in codes(diagnose(Exhibits(target=str(target), draft=folder), STATIC))


def test_weights_that_are_cut_short_are_a_finding(tmp_path: Path, target: Path):
    folder = draft(tmp_path / "draft")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert codes(diagnose(Exhibits(target=str(target), draft=folder), STATIC))[0] == "weights-broken"


def test_what_does_not_exist_is_refused(tmp_path: Path):
    for wrong in (Exhibits(), Exhibits(draft=tmp_path / "none"), Exhibits(target=str(tmp_path / "none")), Exhibits(engine="vllm")):
        with pytest.raises(UserError):
            diagnose(wrong, STATIC)
    for options in (Options(only=("X",)), Options(depths=("deep",)), Options(minutes=0), Options(rows=0)):
        with pytest.raises(UserError):
            options.check()


def test_a_test_that_breaks_rules_nothing_out(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever the accuracy says: what a broken test would have found is not known."""

    def breaks(exam: Examination) -> Outcome:
        exam.measured["accuracy"] = 0.9
        raise KeyError("a bug")

    hypothesis = dataclasses.replace(all_hypotheses()[0], run=breaks, needs=())
    monkeypatch.setattr(runner, "all_hypotheses", lambda: [hypothesis])
    found = diagnose(Exhibits(target=str(target), draft=draft(tmp_path / "draft")), Options(depths=(hypothesis.depth,)))
    assert found.verdict == "inconclusive"
    assert hypothesis.code in found.summary
    assert "bug in Eyas" in found.notes[0]


def test_only_and_skip_choose_what_is_tested(tmp_path: Path, target: Path):
    exhibits = Exhibits(target=str(target), draft=draft(tmp_path / "draft", num_attention_heads=4))
    only = diagnose(exhibits, Options(depths=("static",), only=("A", "tie-flag")))
    assert {item.hypothesis.kind for item in only.tested} == {"A", "H"}
    assert codes(diagnose(exhibits, Options(depths=("static",), skip=("C",)))) == []


def test_a_plan_runs_nothing_and_says_what_is_missing(tmp_path: Path, target: Path):
    found = plan(Exhibits(target=str(target)), Options())
    missing = {item.code: lacks for item, lacks in found}
    assert missing["tie-flag"] == "draft"
    assert missing["target-head"] is None
    assert [DEPTHS.index(item.depth) for item, _ in found] == sorted(DEPTHS.index(item.depth) for item, _ in found)


def fault(code: str, weight: float, *shadow: str, verified: bool = False) -> Fault:
    return Fault(code, "draft", (Evidence(f"{code} it is"),), "mend it", weight, verified, shadow)


def test_what_only_follows_from_a_cause_is_told_with_it():
    found = merge([fault("not-loadable", 0.6, "head-missing"), fault("head-missing", 0.9), fault("rope-theta", 0.7)])
    assert [item.code for item in found] == ["head-missing", "rope-theta"]
    assert "not-loadable it is" in [item.text for item in found[0].evidence]


def test_a_measured_consequence_proves_its_cause():
    [found] = merge([fault("map-absolute", 0.88), fault("map-other", 0.92, "map-absolute", verified=True)])
    assert (found.code, found.verified) == ("map-absolute", True)
    assert found.weight == pytest.approx(0.97), "surer than what was read and what was measured, each alone"


def test_two_shadows_of_each_other_both_stay():
    found = merge([fault("taps-other", 0.9, "slot-order"), fault("slot-order", 0.8, "taps-other")])
    assert {item.code for item in found} == {"taps-other", "slot-order"}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("midlayer.self_attn.q_proj.weight", "midlayer.self_attn.q_proj.weight"),
        ("layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ("model.layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"),
        ("draft_model.midlayer.input_layernorm.weight", "midlayer.input_layernorm.weight"),
        ("model.fc_norm.2.weight", "fc_norm.2.weight"),
        ("layers.1.mlp.up_proj.weight", None),
        ("midlayer.mlp.experts.0.up_proj.weight", None),
    ],
)
def test_keys_of_every_project_have_one_name(key: str, name: str | None):
    assert eyas_name(key) == name


@pytest.mark.parametrize(
    "content", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b'{"a"']
)
def test_a_damaged_header_is_said_and_nothing_else_happens(content: bytes, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tensors, _, problem = read_header(path)
    assert not tensors and problem


def test_signatures_name_their_first_suspects():
    assert "(G, S, N, E)" in suspects("vllm", [0.0, 0.0], 1.0)[0]
    assert "(N, R)" in suspects("vllm", [1.0, 1.0], 3.0)[0]
    assert "(A, C, F)" in suspects("vllm", [0.05, 0.0], 1.05)[0]
    assert "(A, C, B)" in suspects("vllm", [0.2, 0.1], 1.2)[0]
    assert "(B, D, E)" in suspects("vllm", [0.7, 0.2], 1.9)[0]
    assert suspects("vllm", [0.75, 0.7, 0.65], 2.6) == []
