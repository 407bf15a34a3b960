"""The draft's one decoder layer: its attention reads [norm(embed) | norm(hidden)], the rest is Llama's.

Legend: B batch, T rows, H hidden size, N query heads, K key/value heads, D size of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from eyas.draft.attention import DraftAttention, Rotation
from eyas.draft.config import DraftConfig
from eyas.draft.mla import MlaAttention


class DraftLayer(nn.Module):
    """Cut into input, query, key/value and output, because training attends in another way than decoding."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config) if config.mla is None else MlaAttention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config.layer_config())
        self.rope = LlamaRotaryEmbedding(config.layer_config())

    def inputs(self, embed_BTH: torch.Tensor, hidden_BTH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads [B, T, 2H], and the residual [B, T, H]."""
        normed_BTH = self.hidden_norm(hidden_BTH)
        both = torch.cat([self.input_layernorm(embed_BTH.to(hidden_BTH.dtype)), normed_BTH], dim=-1)
        return both, normed_BTH if self.config.norm_before_residual else hidden_BTH

    def rotation(self, position_BT: torch.Tensor, like: torch.Tensor) -> Rotation:
        """cos and sin [B, 1, T, columns that RoPE turns]."""
        cos, sin = self.rope(like, position_BT)
        return cos[:, None], sin[:, None]

    def query(self, both: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Rotated queries [B, N, T, D]; scores are query · key / sqrt(D)."""
        return self.self_attn.query(both, rotation)

    def key_value(self, both: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys [B, K, T, D] and values [B, K, T, E]."""
        return self.self_attn.key_value(both, rotation)

    def output(self, attended_BNTE: torch.Tensor, residual_BTH: torch.Tensor) -> torch.Tensor:
        """Output projection, residual and MLP: [B, T, H]."""
        hidden = residual_BTH + self.self_attn.project(attended_BNTE)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DraftLayer:
        """A cast to bf16 would take the frequencies along, and rounded ones turn by another angle at every distance."""
        super()._apply(fn, recurse)
        if self.rope.inv_freq.dtype != torch.float32:
            self.rope = LlamaRotaryEmbedding(self.config.layer_config()).to(self.rope.inv_freq.device)
        return self
