"""Whose checkpoint a folder holds, told from its config and the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Collection

from eyas.errors import UserError, in_words
from eyas.formats.base import architectures_of
from eyas.formats.safe import Foreign
from eyas.formats.tensors import unwrapped


def detect(foreign: Foreign) -> tuple[str, str]:
    """The format's name, and by what it was told. Raises UserError if nothing tells."""
    config = foreign.config
    _refuse_target(foreign)
    root = "model." if any("model.layers." in key for key in foreign.tensors) else ""
    keys = set(unwrapped(foreign.tensors, root)[0].values())
    names = architectures_of(config)
    if "speculators_config" in config or "speculators_model_type" in config or "Eagle3Speculator" in names:
        return "speculators", "speculators_config in the config"
    if "_torchspec_version" in config or "torchspec_version" in foreign.metadata:
        return "torchspec", "TorchSpec's version in the config or in the weights"
    if _has(keys, "model.layers."):
        return "automodel", "keys below model.layers."
    if _has(keys, "midlayer."):
        return _by_architecture(names)
    if _has(keys, "layers.0."):
        return "modelopt", "keys below layers.0., and no other project's marks"
    raise UserError(
        f"{foreign.folder}: whose checkpoint this is cannot be told",
        got=f"architectures {in_words(sorted(names))}; keys such as {in_words(sorted(foreign.tensors)[:3])}",
        remedy="name the project with --from; a draft of another kind than EAGLE-3 is not read",
    )


def _refuse_target(foreign: Foreign) -> None:
    """Every EAGLE-3 draft has an fc and one layer; a model with many layers and no fc is what a draft is made for."""
    layers = {found[1] for key in foreign.tensors if (found := re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.", key)) is not None}
    if len(layers) > 1 and not any(re.search(r"(?:^|\.)fc\.", key) for key in foreign.tensors):
        raise UserError(
            f"{foreign.folder} looks like a target, not like a draft",
            got=f"{len(layers)} layers, and no fc that reads states",
            allowed="the folder of an EAGLE-3 draft",
            remedy="give the draft's folder; its target is named by --target",
        )


def _by_architecture(names: Collection[str]) -> tuple[str, str]:
    if "Eagle3LlamaForCausalLM" in names:
        return "angelslim", "its architecture and keys below midlayer."
    if "Eagle3DeepseekV2ForCausalLM" in names or "DeepSeekForCausalLMEagle3" in names:
        return "torchspec", "an MLA head and keys below midlayer."
    if "LlamaForCausalLMEagle3" in names:
        return "specforge", "its architecture and keys below midlayer. (TorchSpec without its version looks the same and means the same)"
    return "eagle", "keys below midlayer., and no other project's marks"


def _has(keys: Collection[str], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in keys)
