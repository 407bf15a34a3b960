"""Where each model family keeps its parts. A new family is a row here and a test parameter.

The rows name paths only. Whether a row is right is not taken on trust: `capture` compares the last state put through
the head with the model's own logits for every batch that it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.errors import UserError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Family:
    """Attribute paths from the loaded causal language model to its parts."""

    name: str
    model_types: tuple[str, ...]
    backbone: str = "model"
    embed: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    lm_head: str = "lm_head"

    @property
    def is_wrapped(self) -> bool:
        """The language model is one part of a multimodal one; lm_head stays at the top."""
        return self.backbone.endswith("language_model")


FAMILIES: tuple[Family, ...] = (
    Family(
        "llama",
        (
            "llama",
            "mistral",
            "ministral3",
            "smollm3",
            "granite",
            "olmo2",
            "olmo3",
            "cohere",
            "cohere2",
            "starcoder2",
            "phi3",
            "helium",
            "arcee",
            "seed_oss",
        ),
    ),
    Family("qwen", ("qwen2", "qwen3")),
    Family("gemma", ("gemma", "gemma2", "gemma3_text")),
    Family("moe", ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "olmoe", "glm4", "glm4_moe", "minimax_m2", "ernie4_5_moe")),
    Family("deepseek", ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")),
    Family("kimi", ("kimi_k25",), backbone="model.language_model"),
    Family("wrapped", ("gemma3", "mistral3", "llava", "qwen2_5_vl", "qwen3_vl"), backbone="model.language_model"),
    Family("gpt_neox", ("gpt_neox",), backbone="gpt_neox", embed="embed_in", norm="final_layer_norm", lm_head="embed_out"),
    Family("gpt2", ("gpt2",), backbone="transformer", embed="wte", layers="h", norm="ln_f"),
)


def family_of(model_type: str) -> Family:
    """Raises UserError for a family without a row."""
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = sorted(name for family in FAMILIES for name in family.model_types)
    raise UserError(
        "this model family is not known", got=model_type, allowed=", ".join(known), remedy="add a row to eyas/targets/families.py"
    )


def resolve(root: nn.Module, path: str, what: str) -> Any:
    """Follow a dotted path; a broken row is a UserError that names it."""
    value: Any = root
    for part in path.split("."):
        if not hasattr(value, part):
            raise UserError(
                f"{what} not found at {path!r} in {type(root).__name__}", remedy="mend the family's row in eyas/targets/families.py"
            )
        value = getattr(value, part)
    return value


@dataclass(frozen=True)
class LogitRule:
    """What the family does to lm_head's output: logits = softcap · tanh(scale · x / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

    @staticmethod
    def of(text_config: Any) -> LogitRule:
        scale = 1.0
        if getattr(text_config, "logit_scale", None) is not None:  # Cohere multiplies
            scale = float(text_config.logit_scale)
        if getattr(text_config, "logits_scaling", None) is not None:  # Granite divides
            scale = 1.0 / float(text_config.logits_scaling)
        softcap = getattr(text_config, "final_logit_softcapping", None)  # Gemma 2 and 3
        return LogitRule(scale, float(softcap) if softcap is not None else None)
