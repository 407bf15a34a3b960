"""Tiny targets for tests: real architectures, a few hundred thousand weights, made here and now without a hub.

A random one has the family's shape and wiring; a trained one also says something (see `tiny_text`), so that drafts and
acceptance figures on it mean something. Both are ordinary folders that `load_target` reads.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

from eyas.errors import UserError
from eyas.files import atomic_folder
from eyas.targets.catalog import TINY_FAMILIES
from eyas.targets.kimi import KIMI_ROPE, kimi_config, name_as_published
from eyas.targets.loading import auto_class
from eyas.targets.small_tokenizer import CHAT_TEMPLATE, learn_tokenizer, small_tokenizer
from eyas.targets.teach import Teaching, encode_chats, teach
from eyas.targets.tiny_text import tiny_chats

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
_MOE: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
_MLA: dict[str, Any] = _MOE | {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "deepseek_v3": _MLA,
    # As many heads as keep a score of exactly zero in all of them rare: keys that tie at the last place are picked at random.
    "deepseek_v32": _MLA | {"index_topk": 16, "index_head_dim": 16, "index_n_heads": 16},
    "glm_moe_dsa": _MLA
    | {"n_group": 1, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 16, "indexer_types": ["full", "shared"] * 2},
    "glm4_moe_lite": _MLA | {"n_group": 1},
    "kimi_k25": _MLA | {"n_group": 1, "rope_parameters": KIMI_ROPE},
    "qwen3_moe": _MOE | {"num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "gemma2": {
        "query_pre_attn_scalar": 16,
        "sliding_window": 32,
        "final_logit_softcapping": 8.0,
        "attn_logit_softcapping": 20.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window": 32, "tie_word_embeddings": True},
    "granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25},
}


@dataclass(frozen=True)
class TinyTraining(Teaching):
    """Enough for a held-out top-1 of 80 %; seconds on two threads."""

    num_steps: int = 200
    batch_size: int = 16
    learning_rate: float = 8e-3


def make_tiny(family: str, folder: Path, *, trained: bool, seed: int = 0, training: TinyTraining | None = None) -> None:
    """Write a tiny target of `family` to `folder` (which must not hold anything yet).

    Raises UserError for a family that has no tiny model, or a folder in use.
    """
    if not -(2**63) <= seed < 2**63:
        raise UserError("--seed is out of range", got=seed, allowed="-2^63 to 2^63 - 1")
    if family not in _FAMILIES:
        names = ", ".join(f"tiny-{name}" for name in TINY_FAMILIES)
        raise UserError("no tiny model of this family", got=f"tiny-{family}", allowed=names, remedy="see eyas model list")
    with atomic_folder(folder) as out, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = tiny_tokenizer()
        model = auto_class(family).from_config(_config(family, tokenizer), dtype=torch.float32)
        if trained:
            training = training or TinyTraining()
            teach(model, tokenizer, tiny_chats(training.num_steps * training.batch_size, seed=seed + 1), training, seed)
        save_target(model, tokenizer, out, published_layout=family != "kimi_k25")  # transformers 5.24 cannot write that one back


def save_target(model: Any, tokenizer: Any, folder: Path, *, published_layout: bool) -> None:
    """Write weights, configs and tokenizer into an existing folder.

    Args:
        published_layout: one tensor an expert, as models are published; else stacked as transformers computes, which
            loads much faster where experts are many.
    """
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder, save_original_format=published_layout)
    if model.config.model_type == "kimi_k25":
        name_as_published(folder)
    tokenizer.save_pretrained(folder)


def tiny_tokenizer(chat_template: str = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer learnt from the tiny text: any text has ids, known words are short."""
    return small_tokenizer(_learnt_from_tiny_text(), chat_template)


@functools.cache
def _learnt_from_tiny_text() -> str:
    return learn_tokenizer(message["content"] for chat in tiny_chats(400, seed=0) for message in chat)


def held_out_top1(model: Any, tokenizer: Any, num_chats: int = 64) -> float:
    """The share of answer-side tokens of unseen tiny chats that the model's argmax gets right."""
    ids_BT, mask_BT = encode_chats(tokenizer, tiny_chats(num_chats, seed=-1))
    with torch.no_grad():
        top1_BT = model(input_ids=ids_BT).logits[:, :-1].argmax(-1)
    right_BT = (top1_BT == ids_BT[:, 1:]) & mask_BT[:, 1:]
    return float(right_BT.sum() / mask_BT[:, 1:].sum())


def _config(family: str, tokenizer: Any) -> Any:
    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    settings = copy.deepcopy(_COMMON | _FAMILIES[family] | ids)
    return kimi_config(settings, tokenizer.pad_token_id) if family == "kimi_k25" else AutoConfig.for_model(family, **settings)
