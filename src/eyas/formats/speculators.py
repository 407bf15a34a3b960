"""speculators' checkpoints: `layers.0.`, the layer's config in an object of its own, the switches beside it (0.9.0).

Layer ids mean what enters a layer. Versions 0.3 and 0.4 kept none and took the outputs of layers 2, N // 2 and N - 3.
Its config cannot have `norm_before_fc` and `fc_norm` together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.formats.base import Format, Source
from eyas.formats.flat import read_layer, read_switch, read_tensors_shown, refuse_odd_layers, write_layer
from eyas.formats.ids import default_boundaries, old_speculators_boundaries
from eyas.formats.reading import Reading
from eyas.formats.rope import yarn_softmax_factor
from eyas.wiring import Wiring

ARCHITECTURE = "Eagle3Speculator"


def _read(source: Source) -> Reading:
    config, where = source.config, source.where
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise UserError(f"{where}: this is no EAGLE-3 draft", got=f"speculators_model_type = {kind!r}", allowed="eagle3")
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise UserError(f"{where}: transformer_layer_config is missing", got=repr(layer)[:80], allowed="an object")
    reading = Reading(where)
    refuse_odd_layers(config, where)  # some of its keys are beside the layer's config
    read_layer(reading, layer, source)
    # its own tie_word_embeddings is transformers' default and means nothing: the head is always stored
    read_tensors_shown(reading, source, {"draft_vocab_size": config.get("draft_vocab_size"), **_tie(layer)})
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        read_switch(reading, config, name, False, "speculators' own default (vLLM's default of norm_before_residual is true)")
    if reading.get("mla.kv_lora_rank") is not None:
        reading.assume("mla.softmax_factor", yarn_softmax_factor(reading.get("rope_parameters")), "YaRN's mscale squared, as in vLLM")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    model_type = "deepseek_v3" if config.mla else "qwen3" if config.qk_norm else "llama"
    return {
        "architectures": [ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": wiring.ttt_steps or 3}],
            "verifier": {"name_or_path": wiring.target_name, "architectures": []},
        },
        "transformer_layer_config": {"model_type": model_type, **write_layer(config, dtype)},
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        "torch_dtype": dtype,
    }


def _tie(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {"tie_word_embeddings": layer.get("tie_word_embeddings")}


def _default_taps(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    version = re.match(r"(\d+)\.(\d+)", str(config.get("speculators_version", "")))
    is_old = version is not None and (0, 3) <= (int(version[1]), int(version[2])) < (0, 5)  # before, it converted others' drafts only
    return old_speculators_boundaries(num_layers) if is_old else default_boundaries(num_layers)


def _refuse(config: DraftConfig) -> str | None:
    return "norm_before_fc and fc_norm together" if config.norm_before_fc and config.fc_norm else None


FORMAT = Format(
    name="speculators",
    title="speculators",
    layers=("layers.0.",),
    ids_mean="boundary",
    runs=frozenset({"norm_before_fc", "fc_norm", "norm_before_residual", "norm_output", "taps", "attention_bias", "mlp_bias", "qk_norm"}),
    read=_read,
    write=_write,
    default_taps=_default_taps,
    refuse=_refuse,
)
