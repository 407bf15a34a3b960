"""What an engine must do to run a draft as it was trained, read from the draft's config.json alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.engines.rows import HeadKind
from eyas.errors import UserError, in_words
from eyas.files import read_json

# What a draft may need of an engine. The rows of the tables say which of these each version honours.
FEATURES = {
    "num_taps": "another number of taps than three",
    "norm_before_fc": "one norm over all taps (norm_before_fc)",
    "fc_norm": "a norm a tap (fc_norm)",
    "norm_before_residual": "the normed state as residual (norm_before_residual)",
    "norm_output": "the normed state fed back (norm_output)",
    "own_embedding": "an embedding of its own, as wide as the target's",
    "target_head": "the target's lm_head",
    "taps_fill_hidden": "taps that are together as wide as the draft",
    "attention_bias": "biases in attention",
    "mlp_bias": "biases in the MLP",
    "fc_bias": "a bias in fc",
    "qk_norm": "norms on queries and keys (Qwen3)",
    "full_query": "MLA queries without q_lora_rank",
    "half_rope": "MLA RoPE that pairs column i with i + half",
    "plain_mla_rope": "MLA with RoPE that is not YaRN",
    "rope_kind": "RoPE of a kind that engines are not known to compute alike",
    "softmax_factor": "an MLA softmax factor that does not follow from its RoPE",
    "activation": "another activation than SiLU",
}
_OF_MLA = frozenset({"full_query", "half_rope", "plain_mla_rope", "softmax_factor"})
_NOT_OF_MLA = frozenset({"attention_bias", "qk_norm"})
_SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
_BIASES = ("attention_bias", "mlp_bias", "fc_bias", "qk_norm")
_SIZES = ("num_taps", "hidden_size", "target_hidden_size", "vocab_size", "draft_vocab_size")
_REQUIRED = (*_SIZES, "hidden_act", "rope_parameters", *_SWITCHES)


def features_of(kind: HeadKind) -> tuple[str, ...]:
    """The names of `FEATURES` that a head of this kind can have. With qk_norm a Llama-style head is a Qwen3-style one."""
    without = {"mla": _NOT_OF_MLA, "llama": _OF_MLA | {"qk_norm"}, "qwen3": _OF_MLA}[kind]
    return tuple(name for name in FEATURES if name not in without)


@dataclass(frozen=True)
class DraftFacts:
    """`config` is the draft's config.json, of either format; it is not checked beyond what is read here."""

    config: Mapping[str, Any]

    @staticmethod
    def read(folder: Path) -> DraftFacts:
        """Raises UserError for a config without the keys that are judged."""
        path = folder / "config.json"
        config = read_json(path, "the draft's config")
        missing = [key for key in _REQUIRED if key not in config]
        if "eyas_draft_format" not in config or missing:
            raise UserError(
                f"{path} is not the config of an Eyas draft",
                got=f"missing {in_words(missing)}" if missing else "no eyas_draft_format",
                remedy="a draft of another project goes through eyas import first",
            )
        wrong = _wrong(config)
        if wrong:
            raise UserError(
                f"{path}: {', '.join(wrong)} have the wrong type or value",
                got=", ".join(repr(config[key])[:60] for key in wrong),
                remedy="use the config.json that was saved with the draft",
            )
        return DraftFacts(config)

    @property
    def kind(self) -> HeadKind:
        if self.config.get("mla") is not None:
            return "mla"
        return "qwen3" if self.config.get("qk_norm") else "llama"

    @property
    def full_vocabulary(self) -> bool:
        return bool(self.config["draft_vocab_size"] == self.config["vocab_size"])

    def needs(self) -> tuple[str, ...]:
        """The names of `FEATURES` that this draft uses."""
        config, mla = self.config, self.config.get("mla")
        same_width = config["hidden_size"] == config["target_hidden_size"]
        used = {name: bool(config.get(name)) for name in (*_SWITCHES, *_BIASES)}
        used["num_taps"] = config["num_taps"] != 3
        used["own_embedding"] = bool(config.get("own_embedding")) and same_width
        used["target_head"] = config.get("lm_head_source") == "target"
        used["taps_fill_hidden"] = config["num_taps"] * config["target_hidden_size"] == config["hidden_size"]
        used["activation"] = config["hidden_act"] != "silu"
        used["rope_kind"] = not _known_rope(config["rope_parameters"], of_mla=mla is not None)
        if mla is not None:
            used["full_query"] = mla.get("q_lora_rank") is None
            used["half_rope"] = mla.get("rope_interleaved") is False
            used["plain_mla_rope"] = config["rope_parameters"].get("rope_type", "default") == "default"
            wanted = _softmax_factor(config["rope_parameters"])
            used["softmax_factor"] = not math.isclose(float(mla.get("softmax_factor", 1.0)), wanted, rel_tol=1e-5)
        return tuple(name for name in FEATURES if used.get(name))


def _wrong(config: Mapping[str, Any]) -> list[str]:
    """Keys that are judged here, but whose values no draft has."""
    rope, mla = config["rope_parameters"], config.get("mla")
    wrong = [key for key in _SIZES if not isinstance(config[key], int) or isinstance(config[key], bool) or not 0 < config[key] < 2**31]
    wrong += [key for key in (*_SWITCHES, *_BIASES) if not isinstance(config.get(key, False), bool)]
    if not isinstance(rope, Mapping) or not all(_is_number(rope.get(key)) for key in ("factor", "mscale", "mscale_all_dim")):
        wrong.append("rope_parameters")
    if mla is not None and not (isinstance(mla, Mapping) and _is_number(mla.get("softmax_factor"))):
        wrong.append("mla")
    return wrong


def _is_number(value: Any) -> bool:
    """Or nothing."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9)


def _known_rope(rope: Mapping[str, Any], of_mla: bool) -> bool:
    kind = rope.get("rope_type", "default")
    if of_mla:
        return kind in ("default", "yarn")
    if kind == "yarn":  # with mscale, transformers scales cos and sin in another way than the engines' Llama layers
        return rope.get("mscale") is None and rope.get("mscale_all_dim") is None
    return kind in ("default", "linear", "llama3")


def _softmax_factor(rope: Mapping[str, Any]) -> float:
    """What engines multiply an MLA head's scores with: DeepSeek's mscale squared under YaRN, else 1."""
    factor, mscale = float(rope.get("factor") or 1.0), float(rope.get("mscale_all_dim") or 0.0)
    if rope.get("rope_type", "default") != "yarn" or factor <= 1.0:
        return 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) ** 2
