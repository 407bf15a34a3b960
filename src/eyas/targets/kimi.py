"""Kimi-K2.5 from the inside out: a DeepSeek-V3 text model within a multimodal wrapper, whose vision tower is always there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from eyas.files import read_json, write_json

# Kimi's kind of RoPE. YaRN also scales the scores of its attention, which a draft with an MLA head must do alike.
KIMI_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 50000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_VISION: dict[str, Any] = {
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "pos_emb_time": 1,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
}


def kimi_config(text: Mapping[str, Any], no_token: int) -> Any:
    """The wrapper's config around a text model's, with the smallest vision tower.

    Args:
        no_token: an id that no text holds, for the places of images, which are not used.
    """
    places = dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), no_token)
    return AutoConfig.for_model(
        "kimi_k25",
        text_config={"model_type": "deepseek_v3", **text},
        vision_config=dict(_VISION),
        projection_hidden_size=_VISION["hidden_size"],
        tie_word_embeddings=text.get("tie_word_embeddings", False),
        **places,
    )


def name_as_published(folder: Path) -> None:
    """Name the architecture in a saved config.json as Kimi's own does, which is what engines know; transformers' class has another name."""
    path = folder / "config.json"
    write_json(path, {**read_json(path, "the config just saved"), "architectures": ["KimiK25ForConditionalGeneration"]})
