"""Plans against what was published of the same models and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_parts import PUBLISHED, shape_of

from eyas.plan.config import read_config
from eyas.plan.disk import OWN, dump_rows, state_bytes
from eyas.plan.gpus import GPUS, Fleet
from eyas.plan.hours import CAPTURE_SHARE, TRAIN_SHARE
from eyas.plan.known import KNOWN
from eyas.plan.plan import Request, make_plan
from eyas.plan.shape import read_shape
from eyas.plan.units import count, size
from eyas.plan.weights import read_weights

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"


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
