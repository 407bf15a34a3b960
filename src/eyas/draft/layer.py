"""The draft's one decoder layer: Llama-style, but q, k and v read [norm(embed) | norm(hidden)].

Legend: B batch, T rows, H hidden size, N query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, rotate_half

from eyas.draft.config import DraftConfig


class DraftAttention(nn.Module):
    """The four projections; the input of q, k and v is twice as wide as their output's model."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        double = 2 * config.hidden_size
        self.q_proj = nn.Linear(double, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(double, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(double, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)


class DraftLayer(nn.Module):
    """Cut into input, query, key/value and output, because training attends in another way than decoding."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        layer_config = config.layer_config()
        self.config = config
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(layer_config)
        self.rope = LlamaRotaryEmbedding(layer_config)

    def inputs(self, embed_BTH: torch.Tensor, hidden_BTH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads [B, T, 2H], and the residual [B, T, H]."""
        normed_BTH = self.hidden_norm(hidden_BTH)
        both = torch.cat([self.input_layernorm(embed_BTH.to(hidden_BTH.dtype)), normed_BTH], dim=-1)
        return both, normed_BTH if self.config.norm_before_residual else hidden_BTH

    def rotation(self, position_BT: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [B, 1, T, D]."""
        cos, sin = self.rope(like, position_BT)
        return cos[:, None], sin[:, None]

    def query(self, both: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotated queries [B, N, T, D]."""
        return _rotate(self._heads(self.self_attn.q_proj(both)), rotation)

    def key_value(self, both: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys and values, each [B, K, T, D]."""
        return _rotate(self._heads(self.self_attn.k_proj(both)), rotation), self._heads(self.self_attn.v_proj(both))

    def output(self, attended_BNTD: torch.Tensor, residual_BTH: torch.Tensor) -> torch.Tensor:
        """Output projection, residual and MLP: [B, T, H]."""
        merged = attended_BNTD.transpose(1, 2).flatten(2)
        hidden = residual_BTH + self.self_attn.o_proj(merged)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)


def _rotate(x_BHTD: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    return x_BHTD * cos.to(x_BHTD.dtype) + rotate_half(x_BHTD) * sin.to(x_BHTD.dtype)
