"""Models that can be planned by name: what their published config.json says, as far as sizes go.

Their published numbers of parameters are held against these rows in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA = {"model_type": "llama", "vocab_size": 128256, "head_dim": 128, "num_key_value_heads": 8, "tie_word_embeddings": False}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
}
_KIMI_INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Kimi-K2.5": {
        "model_type": "kimi_k25",
        "text_config": {
            **_DEEPSEEK,
            "vocab_size": 163840,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "first_k_dense_replace": 1,
            "quantization_config": _KIMI_INT4,
        },
    },
    "DeepSeek-V3": {
        **_DEEPSEEK,
        "vocab_size": 129280,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "first_k_dense_replace": 3,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "Qwen3-235B-A22B": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
    },
    "Llama-3.3-70B": {**_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "Llama-3.1-8B": {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
