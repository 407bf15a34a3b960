"""Plans against what was published of the same models and runs, and what a user can get wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from eyas.cli.main import app
from eyas.errors import UserError
from eyas.plan.config import Config, read_config
from eyas.plan.disk import OWN, dump_rows, state_bytes
from eyas.plan.draft import draft_cost
from eyas.plan.gpus import GPUS, Fleet
from eyas.plan.hours import CAPTURE_SHARE, TRAIN_SHARE, Rates, offline, online
from eyas.plan.known import KNOWN
from eyas.plan.memory import Layout, best, candidates, layout_cost
from eyas.plan.plan import Request, make_plan
from eyas.plan.shape import read_shape
from eyas.plan.units import count, parse_count, parse_rate, size
from eyas.plan.weights import read_weights

FEW = Request(Fleet.parse("2xH100"), tokens=1000)
DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"
# The sum of the elements of the published safetensors; Kimi-K2.5's is of its language model.
PUBLISHED = {
    "Kimi-K2.5": 1_026_408_232_448,
    "DeepSeek-V3": 671_026_419_200,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Llama-3.3-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
}


def shape_of(name: str):
    return read_shape(read_config(name))


def config(**values) -> Config:
    return Config("mine", "config.json", values, values)


def small(**values) -> Config:
    base = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 100}
    return config(**base | {"intermediate_size": 128, "num_key_value_heads": 2} | values)


# -- sizes that were published ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    assert shape_of(name).parameters == pytest.approx(PUBLISHED[name], rel=1e-5)


def test_every_model_that_is_known_by_name_has_a_published_number():
    assert set(PUBLISHED) == set(KNOWN)


@pytest.mark.parametrize(("name", "billions"), [("Kimi-K2.5", 32), ("DeepSeek-V3", 37), ("Qwen3-235B-A22B", 22)])
def test_parameters_used_for_a_token_are_those_of_the_model_cards(name, billions):
    assert shape_of(name).matrix_parameters / 1e9 == pytest.approx(billions, abs=0.6)


def test_the_int4_checkpoint_of_kimi_is_as_large_as_published():
    config = read_config("Kimi-K2.5")
    weights = read_weights(config)
    assert weights.bytes_of(read_shape(config)) == pytest.approx(594_205_904_896, rel=1e-4)  # 507 GB of it routed experts' int4
    assert weights.bits["experts"] == 4.5
    assert {weights.bits[part] for part in ("attention", "dense", "shared", "embedding")} == {16}


def test_a_token_of_deepseek_leaves_the_published_cache():
    shape = shape_of("DeepSeek-V3")
    assert 2 * shape.num_layers * shape.cache_size == 70_272


def test_fifty_thousand_samples_of_an_8b_take_what_speculators_says():
    """Its offline tutorial: about 1.6 TB for 50 k samples of Llama-3.1-8B, 1,024 tokens on average."""
    rows = {(row.format, row.dtype): row.bytes_per_token for row in dump_rows(shape_of("Llama-3.1-8B"), 3, 32000)}
    assert rows["speculators", "bf16"] * 50_000 * 1024 / 1e12 == pytest.approx(1.6, rel=0.06)
    assert rows[OWN, "bf16"] == pytest.approx(rows["speculators", "bf16"], rel=1e-4)


def test_a_sample_of_kimi_takes_what_torchspec_says():
    """Its announcement: about 7 GB for one of 128 k tokens."""
    assert state_bytes(shape_of("Kimi-K2.5"), 3) * 128 * 1024 / 2**30 == pytest.approx(7.0, rel=0.01)


def test_the_default_rates_are_those_of_torchspecs_run():
    """600 k samples, 6 B tokens, 1,500 H200 hours; 16 GPUs capture and 16 train; its draft: four steps, the whole vocabulary,
    64 heads of 128, MLP of 12,288 (configs/draft_models/kimi_k25_eagle3.json and sglang_kimi_k25_2node.yaml)."""
    kimi, h200 = shape_of("Kimi-K2.5"), next(gpu for gpu in GPUS if gpu.name == "H200")
    per_gpu = 6e9 / (1500 * 3600 / 2)
    assert per_gpu * kimi.flops_per_token(10_000) / h200.flops == pytest.approx(CAPTURE_SHARE, abs=0.005)
    hidden, heads, size, vocab = 7168, 64, 128, 163840
    step = 2 * hidden * 3 * heads * size + heads * size * hidden + 3 * hidden * 12288 + hidden * vocab
    flops = 6 * (3 * hidden * hidden + 4 * step) + 2 * hidden * vocab
    assert per_gpu * flops / h200.flops == pytest.approx(TRAIN_SHARE, abs=0.005)


def test_the_run_that_the_rates_come_from_is_planned_as_it_went():
    plan = make_plan(
        read_config("Kimi-K2.5"),
        Request(Fleet.parse("32xH200"), tokens=6_000_000_000, length=10_000, draft_vocab_size=163840, ttt_steps=4),
    )
    assert str(plan.chosen.layout) == "tp=8,cp=1,ep=8"
    assert (plan.online.capture_gpus, plan.online.train_gpus) == (16, 16)
    assert plan.online.hours * 32 == pytest.approx(1500, rel=0.1)


@pytest.mark.parametrize(
    ("name", "gpus", "fits"),
    [
        ("Kimi-K2.5", "8xH200", True),  # SGLang's and vLLM's recipes: one node, tp 8
        ("Kimi-K2.5", "4xH200", False),
        ("DeepSeek-V3", "8xH200", True),
        ("DeepSeek-V3", "8xH100", False),  # fp8 takes two nodes of them
        ("DeepSeek-V3", "16xH100", True),
        ("Llama-3.3-70B", "1xH200", False),  # 141 GB of weights
        ("Llama-3.3-70B", "2xH200", True),
        ("Qwen3-235B-A22B", "8xH100", True),
        ("Qwen3-235B-A22B", "4xH100", False),
        ("Llama-3.1-8B", "1xL4", True),
    ],
)
def test_what_is_known_to_fit_fits(name, gpus, fits):
    plan = make_plan(read_config(name), Request(Fleet.parse(gpus), tokens=1_000_000))
    assert (plan.chosen is not None) == fits
    assert (plan.needed_gpus is None) == fits


def test_the_document_quotes_the_plans():
    rows = {line.split("|")[1].split("(")[0].strip(): line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")}
    for name in KNOWN:
        plan = make_plan(read_config(name), Request(Fleet.parse("16xH200"), tokens=100_000_000))
        figures = [count(plan.shape.parameters), size(plan.dump[0].bytes_per_token * 1e8), size(plan.chosen.total_bytes)]
        figures += [f"{plan.shape.matrix_parameters / 1e9:.1f} B", f"{plan.offline.hours:.2f} h", f"{plan.online.hours:.2f} h"]
        assert [figure for figure in figures if figure not in rows[name]] == [], name
        assert f"| {PUBLISHED[name]:,} | {plan.shape.parameters:,} |" in DOCUMENT.read_text()


# -- shapes -----------------------------------------------------------------------------------------------------


def test_tied_embeddings_are_counted_once_and_used_as_a_head():
    apart, tied = read_shape(small(tie_word_embeddings=False)), read_shape(small(tie_word_embeddings=True))
    assert apart.parameters - tied.parameters == 100 * 64
    assert apart.matrix_parameters == tied.matrix_parameters


def test_a_familys_own_default_says_whether_an_unsaid_head_is_tied():
    assert read_shape(small(model_type="gemma2")).tied
    assert not read_shape(small()).tied


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, 4),
        ({"first_k_dense_replace": 1}, 3),
        ({"mlp_only_layers": [0, 3]}, 2),
        ({"decoder_sparse_step": 2}, 2),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 2}, 2),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, 2),
    ],
)
def test_layers_without_experts_are_told_from_those_with(values, layers):
    shape = read_shape(small(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **values))
    assert shape.parts.experts == layers * 4 * 3 * 64 * 32
    assert shape.parts.dense == (4 - layers) * 3 * 64 * 128


def test_a_token_is_multiplied_with_its_chosen_experts_only():
    few = read_shape(small(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2))
    all_of_them = read_shape(small(model_type="mixtral", num_local_experts=8, num_experts_per_tok=8))
    assert all_of_them.matrix_parameters - few.matrix_parameters == 4 * 6 * 3 * 64 * 128


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"model_type": "mamba2"}, "family that cannot be counted"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "no attention"),
        ({"hidden_size": None}, "how large the model is"),
        ({"hidden_size": "64"}, "whole number"),
        ({"num_hidden_layers": 0}, "at least 1"),
        ({"num_hidden_layers": 10**6}, "so many layers"),
        ({"layer_types": 3}, "must be a list"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["re:("]}}, "regular expression"),
        ({"num_key_value_heads": 3}, "divide evenly"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "more experts than there are"),
        ({"quantization_config": {"quant_method": "homemade"}}, "not known"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused(values, match):
    with pytest.raises(UserError, match=match):
        make_plan(small(**values), Request(Fleet.parse("H100"), tokens=1000))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**12)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["re:(", "fp8"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["weights", "num_bits", "group_size", "g"]), inner, max_size=3)
    ),
    max_leaves=6,
)
QUANTISED = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["compressed-tensors", "gptq", "fp8", "modelopt"])},
    optional={"config_groups": VALUES, "ignore": st.lists(VALUES, max_size=3), "bits": VALUES, "group_size": VALUES, "quant_algo": VALUES},
)
KEYS = ["num_hidden_layers", "hidden_size", "num_key_value_heads", "head_dim", "kv_lora_rank", "num_experts", "num_experts_per_tok"]
KEYS += ["layer_types", "mlp_only_layers", "mlp_layer_types", "moe_layer_end_index", "dtype", "quantization_config", "tie_word_embeddings"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES | QUANTISED, max_size=4))
def test_whatever_a_config_says_it_is_planned_or_refused(values):
    try:
        plan = make_plan(small(**{"num_experts": 4, "num_experts_per_tok": 2} | values), FEW)
    except UserError:
        return
    json.dumps(plan.to_json(), allow_nan=False)
    assert plan.shape.parameters > 0


@pytest.mark.parametrize(
    ("quantised", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, 8),
    ],
)
def test_bits_of_a_weight_are_read_from_the_config(quantised, bits):
    weights = read_weights(small(quantization_config=quantised))
    assert weights.bits["attention"] == bits
    assert weights.bits["embedding"] == 16
    left_out = read_weights(small(quantization_config={**quantised, "ignore": ["re:.*self_attn.*"]}))
    assert (left_out.bits["attention"], left_out.bits["dense"]) == (16, bits)
    assert read_weights(small(quantization_config=quantised), given_bits=3).bits["attention"] == 3


def test_what_is_quantised_is_said_of_the_parts_that_are_there():
    def said(**values) -> str:
        found = small(**values)
        return read_weights(found).words(read_shape(found))

    assert said() == "bf16"
    assert said(torch_dtype="float32") == "fp32"
    assert (
        said(quantization_config={"quant_method": "fp8"}) == "8 bits a weight (fp8) in attention, keys and values, dense MLPs; else 16 bits"
    )
    nothing = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "mlp"]}
    assert said(quantization_config=nothing) == "bf16"


# -- layouts ----------------------------------------------------------------------------------------------------


def cost(shape, weights, layout, tokens=4096, gpus="64xH200"):
    return layout_cost(shape, weights, layout, Fleet.parse(gpus), tokens=tokens, num_taps=3)


def test_tensor_parallelism_splits_what_it_can_and_context_parallelism_activations_only():
    shape, weights = shape_of("Llama-3.3-70B"), read_weights(read_config("Llama-3.3-70B"))
    one, tp, cp = (cost(shape, weights, layout) for layout in (Layout(1), Layout(8), Layout(1, 8)))
    assert tp.weight_bytes == pytest.approx(one.weight_bytes / 8, rel=0.01)
    assert tp.cache_bytes == one.cache_bytes / 8
    assert (cp.weight_bytes, cp.cache_bytes) == (one.weight_bytes, one.cache_bytes)
    assert cp.activation_bytes < one.activation_bytes / 2


def test_more_ranks_than_key_value_heads_repeat_them():
    shape, weights = shape_of("Llama-3.3-70B"), read_weights(read_config("Llama-3.3-70B"))
    assert cost(shape, weights, Layout(16)).cache_bytes == cost(shape, weights, Layout(8)).cache_bytes


def test_latents_stand_on_every_rank():
    shape, weights = shape_of("Kimi-K2.5"), read_weights(read_config("Kimi-K2.5"))
    assert cost(shape, weights, Layout(8, 1, 8)).cache_bytes == cost(shape, weights, Layout(1, 1, 8)).cache_bytes == 4096 * 70_272


def test_experts_can_be_spread_wider_than_a_copy():
    shape, weights = shape_of("Kimi-K2.5"), read_weights(read_config("Kimi-K2.5"))
    narrow, wide = cost(shape, weights, Layout(8, 1, 8)), cost(shape, weights, Layout(8, 1, 64))
    experts = shape.parts.experts * 4.5 / 8
    assert narrow.weight_bytes - wide.weight_bytes == pytest.approx(experts / 8 - experts / 64)


def test_all_candidates_can_be_and_the_taken_one_keeps_the_fewest_together():
    shape, weights, fleet = shape_of("DeepSeek-V3"), read_weights(read_config("DeepSeek-V3")), Fleet.parse("32xH200")
    found = candidates(shape, fleet)
    assert all(layout.problem(shape, fleet.count) is None for layout in found)
    costs = [layout_cost(shape, weights, layout, fleet, tokens=4096, num_taps=3) for layout in found]
    taken = best(costs)
    assert taken.layout.gpus_together == min(item.layout.gpus_together for item in costs if item.fits) == 8


@pytest.mark.parametrize("text", ["tp=3", "tp=128", "cp=2", "tp=8,pp=2", "tp=8,ep=7", "tp=8,cp=2", "tp=0", ""])
def test_a_layout_that_cannot_be_is_refused(text):
    with pytest.raises(UserError) as caught:
        Layout.parse(text, shape_of("DeepSeek-V3"), Fleet.parse("8xH200"))
    assert caught.value.allowed


# -- hours ------------------------------------------------------------------------------------------------------

FAST = Rates(capture=1000, train=500, disk=1e12, network=1e12)


def test_offline_adds_up_and_the_disk_can_limit():
    run = offline(FAST, gpus=8, capture_gpus=8, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (run.capture_hours, run.train_hours, run.limit) == (0.125, 0.5, "training")
    slow = offline(Rates(1000, 500, 1e4, 1e12), gpus=8, capture_gpus=8, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (slow.capture_hours, slow.train_hours, slow.limit) == (1.0, 2.0, "reading the dump")
    assert slow.bytes_per_second == 1e4


def test_online_takes_the_best_split_and_captures_every_epoch():
    run = online(FAST, gpus=8, gpus_together=2, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (run.capture_gpus, run.train_gpus, run.limit) == (2, 6, "capture")
    assert run.hours == 2 * 3_600_000 / 2000 / 3600
    slow = online(Rates(1000, 500, 1e12, 1e4), gpus=8, gpus_together=2, tokens=3_600_000, epochs=1, bytes_per_token=10)
    assert (slow.limit, slow.hours) == ("the network", 1.0)


def test_online_needs_a_gpu_beside_the_target():
    assert online(FAST, gpus=8, gpus_together=8, tokens=1000, epochs=1, bytes_per_token=10) is None


def test_rates_that_are_given_are_taken_and_no_longer_listed_as_assumed():
    given = {"capture_rate": 123.0, "train_rate": 45.0, "disk_rate": 1e9, "network_rate": 2e9, "draft_vocab_size": 32000}
    plan = make_plan(read_config("Llama-3.1-8B"), Request(Fleet.parse("2xH100"), tokens=1000, **given))
    assert (plan.rates, plan.assumed) == (Rates(123.0, 45.0, 1e9, 2e9), ())
    assert len(make_plan(read_config("Llama-3.1-8B"), Request(Fleet.parse("2xH100"), tokens=1000)).assumed) == 5


def test_a_longer_unroll_costs_its_steps():
    shape = shape_of("Llama-3.1-8B")
    one, four = (draft_cost(shape, num_taps=3, draft_vocab_size=8192, ttt_steps=steps, rows=2048) for steps in (1, 4))
    assert four.parameters == one.parameters
    assert four.flops_per_row - one.flops_per_row == 6 * 3 * (one.attention + one.mlp + one.head)


# -- units and the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"), [("100M", 10**8), ("1.5B", 1_500_000_000), ("51_200_000", 51_200_000), ("512k", 512_000), ("1e6", 10**6)]
)
def test_counts(text, value):
    assert parse_count(text, "--tokens") == value


@pytest.mark.parametrize("text", ["", "many", "-5", "0", "5X", "1.5", "100MB", "1e400", "0.2K5"])
def test_counts_that_are_none(text):
    with pytest.raises(UserError) as caught:
        parse_count(text, "--tokens")
    assert caught.value.allowed and "--tokens" in caught.value.what


def test_rates():
    assert parse_rate("5GB/s", "--disk-rate") == 5e9
    assert parse_rate("400MB/s", "--disk-rate") == 4e8
    for text, match in [("5", "needs a unit"), ("5GB", "needs a unit"), ("400Gb/s", "bytes, not bits"), ("5XB/s", "unknown unit")]:
        with pytest.raises(UserError, match=match):
            parse_rate(text, "--disk-rate")


@pytest.mark.parametrize("text", ["8xH2000", "8x", "x8", "0xH100", "8,H100", "-1xH100", "8xH100xB200"])
def test_gpus_that_are_none(text):
    with pytest.raises(UserError) as caught:
        Fleet.parse(text)
    assert caught.value.allowed and caught.value.remedy


def test_gpus():
    assert (Fleet.parse("8xH200").count, Fleet.parse("8xH200").gpu.memory) == (8, 141e9)
    assert Fleet.parse("h100") == Fleet(1, Fleet.parse("1 x H100").gpu)


def run(*words: str):
    return CliRunner().invoke(app, ["plan", *words])


def test_the_command_says_everything_that_was_asked():
    done = run("--target", "Kimi-K2.5", "--gpus", "16xH200", "--tokens", "100M")
    assert done.exit_code == 0
    for words in ("1.03 T parameters", "5.74 TB", "tp=8,cp=1,ep=8", "taken", "Offline:", "Online:", "limits", "TorchSpec", "MLA latents"):
        assert words in done.stdout, words


def test_json_holds_the_same_figures():
    done = run("--target", "DeepSeek-V3", "--gpus", "16xH200", "--tokens", "1M", "--json")
    value = json.loads(done.stdout)
    assert value["target"]["parameters"] == sum(value["target"]["parameters_by_part"].values())
    assert value["dump"][0]["bytes"] == (4 * 7168 * 2 + 9) * 10**6
    assert value["network"]["bytes"] == 4 * 7168 * 2 * 10**6
    assert value["layout"]["fits"] and value["layout"] in value["layouts"]
    assert value["limits"]


def test_exit_status_says_whether_the_target_fits():
    done = run("--target", "DeepSeek-V3", "--gpus", "8xH100", "--tokens", "1M")
    assert done.exit_code == 1
    assert "16 x H100 would do" in done.stdout
    assert run("--target", "DeepSeek-V3", "--gpus", "16xH100", "--tokens", "1M", "--layout", "tp=8").exit_code == 1


def test_a_file_a_folder_and_a_hub_like_name_work(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["Llama-3.1-8B"]))
    for target in (str(tmp_path), str(tmp_path / "config.json"), "meta-llama/llama-3.1-8b"):
        value = json.loads(run("--target", target, "--gpus", "H100", "--tokens", "1M", "--json").stdout)
        assert value["target"]["parameters"] == PUBLISHED["Llama-3.1-8B"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"--target": "Kimi-K9"}, "known by name"),
        ({"--gpus": "8xH2"}, "unknown GPU"),
        ({"--tokens": "100Q"}, "unknown unit"),
        ({"--length": "long"}, "--length"),
        ({"--num-taps": "0"}, "--num-taps"),
        ({"--draft-vocab-size": "200000"}, "larger than the target"),
        ({"--weight-bits": "64"}, "--weight-bits"),
        ({"--capture-rate": "-1"}, "--capture-rate"),
        ({"--disk-rate": "40Gb/s"}, "not bits"),
    ],
)
def test_what_the_user_gets_wrong_is_named(words, match):
    given = {"--target": "Kimi-K2.5", "--gpus": "8xH200", "--tokens": "1M"} | words
    done = run(*(word for pair in given.items() for word in pair))
    assert isinstance(done.exception, UserError)
    assert match in str(done.exception)


def test_a_config_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_config(str(tmp_path))
    with pytest.raises(UserError, match="missing"):
        read_config(str(tmp_path.parent))


def test_it_answers_without_torch():
    script = (
        "import sys; from eyas.cli.main import main\n"
        "try: main(['plan', '--target', 'Llama-3.1-8B', '--gpus', 'H100', '--tokens', '1M', '--json'])\n"
        "finally: assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
