"""A target's folder as far as its configs and headers tell; its weights may be partly absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyas.doctor.opening.headers import Weights, read_weights
from eyas.doctor.opening.plain import Object, number, read_object, whole

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True)
class TargetFiles:
    folder: Path
    config: Object
    tokenizer: Object
    weights: Weights

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the config, also inside of a multimodal one."""
        inner = self.config.value.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config.value

    @property
    def num_layers(self) -> int | None:
        return whole(self.text.get("num_hidden_layers", self.text.get("n_layer")))

    @property
    def hidden_size(self) -> int | None:
        return whole(self.text.get("hidden_size", self.text.get("n_embd")))

    @property
    def vocab_size(self) -> int | None:
        return whole(self.text.get("vocab_size"))

    @property
    def tied(self) -> bool | None:
        """Whether lm_head is the embedding once more; None if the config leaves it to the family, as Gemma's do."""
        value = self.text.get("tie_word_embeddings", self.config.value.get("tie_word_embeddings"))
        return None if value is None else bool(value)

    @property
    def dtype(self) -> str | None:
        value = self.config.value.get("dtype", self.config.value.get("torch_dtype", self.text.get("dtype", self.text.get("torch_dtype"))))
        return value if isinstance(value, str) else None

    @property
    def theta(self) -> float | None:
        """RoPE's theta of the full-attention layers."""
        rope = self.text.get("rope_parameters")
        rope = rope.get("full_attention", rope) if isinstance(rope, Mapping) else {}
        return number(rope.get("rope_theta")) or number(self.text.get("rope_theta"))

    def find(self, endings: tuple[str, ...]) -> str | None:
        """The one tensor whose name ends so, of the language model; None if there is none or several."""
        found = [name for name in self.weights.tensors if name.endswith(endings) and "vision" not in name and "visual" not in name]
        return found[0] if len(found) == 1 else None

    @property
    def layers_there(self) -> bool:
        """Whether weights of decoder layers are among the files, all of them named."""
        missing = any("is named by the index and is not there" in problem for problem in self.weights.problems)
        return not missing and any(".layers." in name or ".h." in name for name in self.weights.tensors)


def open_target(folder: Path) -> TargetFiles:
    return TargetFiles(folder, read_object(folder / "config.json"), read_object(folder / "tokenizer_config.json"), read_weights(folder))


def cached_folder(name: str) -> Path | None:
    """Where the hub's own cache keeps a model of this id; None if it does not."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
