"""What an engine's tables need to know of a target, read from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import UserError
from eyas.files import read_json
from eyas.wiring import Wiring

_SCALED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text")  # times sqrt(hidden size)

# What `save_pretrained` of transformers writes, and the name under which the model was published, which engines go by.
_PUBLISHED = {"Kimi_K25ForConditionalGeneration": "KimiK25ForConditionalGeneration"}


@dataclass(frozen=True)
class TargetFacts:
    """`scales_embedding`: what the layers read is the embedding's row times a factor, which sharing the table does not carry."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    scales_embedding: bool = False

    @staticmethod
    def read(folder: Path) -> TargetFacts:
        """Raises UserError for a folder without a config.json or one that names no architecture or sizes."""
        if not folder.is_dir():
            raise UserError("the target is not a folder", got=str(folder), remedy="give the folder that holds the target's config.json")
        path = folder / "config.json"
        return TargetFacts.of(read_json(path, "the target's config"), str(path))

    @staticmethod
    def of(config: Mapping[str, Any], where: str) -> TargetFacts:
        """`where` names the file in errors. A model with several parts keeps its language model's sizes in text_config."""
        names = config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise UserError(f"{where} names no architecture", got=names, remedy="engines choose their model file by it: add architectures")
        text = config.get("text_config", config)
        if not isinstance(text, Mapping):
            raise UserError(f"{where}: text_config must be an object", got=type(text).__name__)
        return TargetFacts(
            _PUBLISHED.get(names[0], names[0]),
            _positive(text, "num_hidden_layers", where),
            _positive(text, "hidden_size", where),
            _positive(text, "vocab_size", where),
            text.get("model_type") in _SCALED or any(text.get(key, 1.0) != 1.0 for key in ("embedding_multiplier", "scale_emb")),
        )

    def require(self, wiring: Wiring, where: str) -> None:
        """Raises UserError if the wiring was made for a target of other sizes, or one of its taps lies beyond this one's end."""
        pairs = (
            ("layers", wiring.num_target_layers, self.num_layers),
            ("hidden size", wiring.target_hidden_size, self.hidden_size),
            ("vocabulary", wiring.target_vocab_size, self.vocab_size),
        )
        for words, wired, here in pairs:
            if wired is not None and wired != here:
                raise UserError(
                    f"{where} was made for another target",
                    got=f"{words}: {wired}",
                    allowed=f"{words}: {here}, as the given --target has",
                    remedy="give the target that the draft was trained for",
                )
        for tap in wiring.taps:
            tap.check(self.num_layers)


def _positive(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where}: {key} must be a positive number", got=repr(value))
    return value
