"""The flat config that most projects share: transformers' Llama or DeepSeek keys, and a few of EAGLE-3's own beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.draft.config import DraftConfig, MlaConfig
from eyas.errors import UserError
from eyas.formats.base import Source
from eyas.formats.ids import eagle_config_of
from eyas.formats.reading import Reading
from eyas.formats.rope import DEFAULT_THETA, read_rope, write_rope, yarn_softmax_factor

_MLA_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_MOST_TOKENS = 1 << 24
_AS_TRAINED = "correct it to what the draft was trained with"
_NONE = "if the draft was trained without it, correct config.json; else it is of a kind that Eyas does not have"
# Model-Optimizer's switches of eagle_config, some of which engines read, too.
PLAIN_HEAD: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "use_input_layernorm_in_first_layer": True,
    "parallel_draft_step": 1,
}
_OLD_DEFAULTS: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
# transformers leaves out of a saved config what equals the class's default; shapes of the weights contradict a wrong guess.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _OLD_DEFAULTS
    | {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048},
    "qwen3": _OLD_DEFAULTS
    | {"hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768}
    | {"num_key_value_heads": 32, "head_dim": 128},
}


def write_layer(config: DraftConfig, dtype: str) -> dict[str, Any]:
    """The keys of one decoder layer and its vocabulary, with nothing of EAGLE-3 in it."""
    value: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.lm_head_source == "embedding",
        "torch_dtype": dtype,
        **write_rope(config.rope_parameters),
    }
    if config.mla is not None:
        value |= {"q_lora_rank": config.mla.q_lora_rank, "rope_interleave": config.mla.rope_interleaved}
        value |= {name: getattr(config.mla, name) for name in _MLA_SIZES}
    return value


def write_flat(config: DraftConfig, dtype: str, architecture: str, model_type: str) -> dict[str, Any]:
    """A flat config with the keys of EAGLE-3. A switch that is off has no key: that is what every reader takes it to be then."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **write_layer(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **{name: True for name in _SWITCHES if getattr(config, name)},
    }


def read_flat(source: Source, *, applies_mscale: bool = True) -> Reading:
    """Sizes, RoPE and what the tensors themselves show; the switches are each project's own business.

    Args:
        applies_mscale: the project multiplies MLA scores by YaRN's mscale squared.
    """
    reading = Reading(source.where)
    _refuse_other_heads(eagle_config_of(source.config, source.where), source.where)
    read_layer(reading, source.config, source)
    read_tensors_shown(reading, source, source.config)
    for name in ("norm_before_fc", "fc_norm"):  # a flag without its weights, or weights without their flag, is no draft of anybody's
        read_switch(reading, source.config, name, False, "")
    if reading.get("mla.kv_lora_rank") is not None:
        factor = yarn_softmax_factor(reading.get("rope_parameters")) if applies_mscale else 1.0
        why = "YaRN's mscale squared" if factor != 1.0 else "no YaRN mscale is applied to the scores"
        reading.assume("mla.softmax_factor", factor, f"{why}, as that project's layer does")
    return reading


def read_layer(reading: Reading, config: Mapping[str, Any], source: Source) -> None:
    """The keys of `write_layer`."""
    refuse_odd_layers(config, source.where)
    kind = str(config.get("model_type"))
    kind = kind if kind in _DEFAULTS else "llama"
    defaults = _DEFAULTS[kind]
    for name in _OLD_DEFAULTS.keys() | {
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    }:
        if config.get(name) is not None:
            reading.state(name, config[name])
        else:
            reading.assume(name, defaults[name], f"{source.where} has no such key; this is transformers' default for {kind}")
    rope, has_theta = read_rope(config, source.where)
    if has_theta:
        reading.state("rope_parameters", rope)
    else:
        reading.assume("rope_parameters", rope, f"no key names a theta, and the project's code then takes {DEFAULT_THETA:g}")
    if any("kv_a_proj_with_mqa" in name for name in source.shapes):
        _read_mla(reading, config, source.where)
    else:
        _read_heads(reading, config, defaults)
    for name, shown in (("attention_bias", "q_proj.bias"), ("mlp_bias", "gate_proj.bias")):
        has = any(key.endswith(shown) for key in source.shapes)
        if config.get(name) not in (None, has):
            weights = "have such biases" if has else "have none"
            reading.notes.append(
                f"{name} is {config[name]!r} in {source.where}, but the weights {weights}: they are followed, "
                "and an engine that goes by the config runs another draft"
            )


def read_tensors_shown(reading: Reading, source: Source, config: Mapping[str, Any]) -> None:
    """What is seen from which tensors there are, and from the width of fc."""
    shapes = source.shapes
    for name, key in (
        ("fc_bias", "fc.bias"),
        ("qk_norm", "midlayer.self_attn.q_norm.weight"),
        ("attention_bias", "midlayer.self_attn.q_proj.bias"),
        ("mlp_bias", "midlayer.mlp.gate_proj.bias"),
        ("norm_before_fc", "input_norm.weight"),
        ("fc_norm", "fc_norm.0.weight"),
        ("own_embedding", "embed_tokens.weight"),
    ):
        reading.state(name, key in shapes)
    _read_head(reading, config, source)
    _read_widths(reading, source)


def read_switch(reading: Reading, config: Mapping[str, Any], name: str, default: bool, why: str, key: str | None = None) -> None:
    """A flag of the config, under its own name or `key`. Raises UserError for a value that is no flag."""
    value = config.get(key or name)
    if value is None:
        if name not in reading.stated:
            reading.assume(name, default, why)
    elif not isinstance(value, bool):
        raise UserError(f"{reading.where}: {key or name} must be true or false", got=repr(value)[:80], remedy=_AS_TRAINED)
    else:
        reading.state(name, value)


def ignore_theta(reading: Reading, why: str) -> None:
    """The project trains with theta 10000, whatever its config says; what the config says is then no statement."""
    rope = reading.get("rope_parameters")
    reading.stated.pop("rope_parameters", None)
    reading.assume(
        "rope_parameters",
        rope | {"rope_theta": DEFAULT_THETA},
        f"{why} (the config says {rope['rope_theta']:g}, and that is what engines turn by)",
    )


def size_of(config: Mapping[str, Any], key: str, where: str) -> int | None:
    """A size in the config; None if it is not there. Raises UserError for anything but a positive whole number."""
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31):
        raise UserError(f"{where}: {key} must be a positive whole number", got=repr(value)[:80], remedy=_AS_TRAINED)
    return value


def _read_heads(reading: Reading, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    heads, hidden = reading.get("num_attention_heads"), reading.get("hidden_size")
    for name, fallback, why in (
        ("num_key_value_heads", heads, "as many as query heads"),
        ("head_dim", hidden // heads if _whole(heads) and _whole(hidden) else 1, "hidden_size / num_attention_heads"),
    ):
        if config.get(name) is not None:
            reading.state(name, config[name])
        else:
            reading.assume(name, defaults.get(name, fallback), f"{reading.where} has no such key; transformers then takes {why}")


def _read_mla(reading: Reading, config: Mapping[str, Any], where: str) -> None:
    for name in _MLA_SIZES:
        size = size_of(config, name, where)
        if size is None:
            raise UserError(f"{where}: the weights are an MLA head's, but {name} is missing")
        reading.state(f"mla.{name}", size)
    reading.state("mla.q_lora_rank", size_of(config, "q_lora_rank", where))
    if config.get("rope_interleave") is None:
        reading.assume("mla.rope_interleaved", True, "RoPE of an MLA head turns neighbouring columns in every project's layer")
    else:
        read_switch(reading, config, "mla.rope_interleaved", True, "", "rope_interleave")
    reading.state("num_key_value_heads", reading.get("num_attention_heads"))
    reading.state("head_dim", MlaConfig(*(reading.stated[f"mla.{name}"] for name in _MLA_SIZES)).qk_head_dim)


def _read_head(reading: Reading, config: Mapping[str, Any], source: Source) -> None:
    """Size of the draft's vocabulary and where its head comes from."""
    head, vocab, where = source.shapes.get("lm_head.weight"), reading.get("vocab_size"), source.where
    if not isinstance(vocab, int) or vocab > _MOST_TOKENS:  # nothing in the files may show its size, and tables are made of it
        raise UserError(f"{where}: vocab_size is no vocabulary's", got=repr(vocab)[:40], allowed=f"at most {_MOST_TOKENS}")
    size = size_of(config, "draft_vocab_size", where)
    if size is None:
        rows = head[0] if head else vocab  # a scalar has no first size
        reading.assume(
            "draft_vocab_size", rows, "no key says so; " + ("lm_head has so many rows" if head is not None else "as the target's")
        )
        size = rows
    else:
        reading.state("draft_vocab_size", size)
    tied = config.get("tie_word_embeddings") is True
    if head is not None:
        reading.state("lm_head_source", "draft")
        if tied:
            reading.notes.append("tie_word_embeddings is set, but there is an lm_head of its own: the tensor is taken")
    elif size != vocab:
        raise UserError(
            f"{where}: lm_head.weight is missing, and no other head knows the {size} tokens of the draft's vocabulary",
            remedy="export the draft again with its head: an engine would serve a random one without a word",
        )
    elif tied and reading.get("own_embedding"):
        reading.state("lm_head_source", "embedding")
    else:
        reading.assume("lm_head_source", "target", "there is no lm_head, and the draft knows the whole vocabulary")


def _read_widths(reading: Reading, source: Source) -> None:
    hidden = reading.get("hidden_size")
    width = size_of(source.config, "target_hidden_size", source.where)
    if width is None:
        width = hidden
        reading.assume("target_hidden_size", width, "no key says otherwise, and every project then takes the draft's own width")
    else:
        reading.state("target_hidden_size", width)
    fc = source.shapes.get("fc.weight")
    if fc is None or len(fc) != 2:
        raise UserError(
            f"{source.where}: the weights have no fc.weight, so this is no EAGLE-3 draft",
            got=sorted(source.shapes)[:4] or "no tensors",
            remedy="if another project wrote it, name that one with --from",
        )
    if not _whole(width) or fc[1] % width != 0:
        raise UserError(
            f"{source.where}: fc reads a width that is no multiple of the target's",
            got=f"{fc[1]} columns, target_hidden_size {width}",
            remedy="add target_hidden_size to config.json if the draft is of another width than the target",
        )
    reading.state("num_taps", fc[1] // width)
    count = size_of(source.config, "num_aux_hidden_states", source.where)
    if count is not None:
        reading.state("num_taps", count)


def refuse_odd_layers(config: Mapping[str, Any], where: str) -> None:
    """Raises UserError for a config that speaks of anything but one plain layer."""
    layers = size_of(config, "num_hidden_layers", where)
    if layers not in (None, 1):
        raise UserError(f"{where}: a draft of several layers cannot be carried", got=f"num_hidden_layers {layers}", allowed=1, remedy=_NONE)
    for key, what in (
        ("quantization_config", "quantised weights"),
        ("parallel_drafting", "P-EAGLE's parallel drafting"),
        ("mla_use_nope", "an MLA head without RoPE"),
        ("mla_use_output_gate", "an MLA head with an output gate"),
        ("use_sliding_window", "a draft with sliding-window attention"),
    ):
        if config.get(key):
            quantised = "export the draft again in bf16" if key == "quantization_config" else _NONE
            raise UserError(f"{where}: {what} cannot be carried", got=f"{key} = {str(config[key])[:80]}", remedy=quantised)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise UserError(f"{where}: a draft with sliding-window attention cannot be carried", got=kinds, remedy=_NONE)


def _refuse_other_heads(nested: Mapping[str, Any], where: str) -> None:
    """Switches of `eagle_config` that make another head of it, whoever reads them."""
    for name, wanted in PLAIN_HEAD.items():
        if nested.get(name) not in (None, wanted):
            raise UserError(
                f"{where}: eagle_config says that this is no plain EAGLE-3 draft",
                got=f"{name} = {nested[name]!r}",
                allowed=wanted,
                remedy=_NONE,
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
