"""A loaded target: the model whose output must not change, with its parts found and its tokenizer beside it.

Shapes: B batch, T positions, H hidden size, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eyas.targets.families import Family, LogitRule, resolve
from eyas.targets.layout import SINGLE, Layout
from eyas.targets.sharding import whole_weight


@dataclass(frozen=True)
class Target:
    """Read-only: its parameters never need gradients."""

    name: str
    model: Any
    tokenizer: Any
    family: Family
    device: torch.device
    dtype: torch.dtype
    tokenizer_hash: str
    chat_template_hash: str | None
    stop_ids: tuple[int, ...]
    layout: Layout = SINGLE

    @property
    def config(self) -> Any:
        """The text model's config, also inside a multimodal wrapper."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Positions that the config promises; a million where it names no limit."""
        return getattr(self.config, "max_position_embeddings", None) or 1 << 20

    @property
    def backbone(self) -> nn.Module:
        return resolve(self.model, self.family.backbone, "the text backbone")

    @property
    def layers(self) -> nn.ModuleList:
        return resolve(self.backbone, self.family.layers, "the decoder layers")

    @property
    def embed(self) -> nn.Module:
        return resolve(self.backbone, self.family.embed, "the embedding")

    @property
    def norm(self) -> nn.Module:
        return resolve(self.backbone, self.family.norm, "the final norm")

    @property
    def lm_head(self) -> nn.Module:
        return resolve(self.model, self.family.lm_head, "lm_head")

    def head(self, final_BTH: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of states after the final norm, with the family's scale and softcap."""
        rule = LogitRule.of(self.config)
        logits = self.lm_head(final_BTH)
        if rule.scale != 1.0:
            logits = logits * rule.scale
        if rule.softcap is not None:
            logits = rule.softcap * torch.tanh(logits / rule.softcap)
        return logits

    def head_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of lm_head's weight [len(ids), H] for these target ids."""
        return whole_weight(self.lm_head.weight)[ids.to(self.device)]  # type: ignore[arg-type]
