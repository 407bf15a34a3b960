"""Configs and a small request for the tests of plans."""

from __future__ import annotations

from eyas.plan.config import Config, read_config
from eyas.plan.gpus import Fleet
from eyas.plan.plan import Request
from eyas.plan.shape import read_shape

FEW = Request(Fleet.parse("2xH100"), tokens=1000)
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
