"""What a config.json says of sizes, ties, experts and bits, and what of it is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_parts import FEW, small

from eyas.errors import UserError
from eyas.plan.gpus import Fleet
from eyas.plan.plan import Request, make_plan
from eyas.plan.shape import read_shape
from eyas.plan.weights import read_weights


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
