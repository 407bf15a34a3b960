"""The draft's Llama-style attention: grouped heads, RoPE over whole heads, optional biases and per-head norms (Qwen3).

An attention gives queries, keys and values, and projects what was attended; how rows attend to each other is left to
training and decoding, which do it in different ways.

Legend: B batch, T rows, H hidden size, N query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, rotate_half

from eyas.draft.config import DraftConfig

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos and sin [B, 1, T, D]; D is the number of columns that RoPE turns


class DraftAttention(nn.Module):
    """The input of q, k and v is twice as wide as their output's model."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        double, bias = 2 * config.hidden_size, config.attention_bias
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(double, config.num_attention_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(double, config.num_key_value_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(double, config.num_key_value_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=bias)
        self.q_norm: nn.Module = LlamaRMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm: nn.Module = LlamaRMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def query(self, both: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Rotated queries [B, N, T, D]."""
        return rotate(self.q_norm(self._heads(self.q_proj(both))), rotation)

    def key_value(self, both: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys and values, each [B, K, T, D]."""
        return rotate(self.k_norm(self._heads(self.k_proj(both))), rotation), self._heads(self.v_proj(both))

    def project(self, attended_BNTD: torch.Tensor) -> torch.Tensor:
        """[B, T, H]."""
        return self.o_proj(attended_BNTD.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def rotate(x_BHTD: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    cos, sin = rotation
    return x_BHTD * cos.to(x_BHTD.dtype) + rotate_half(x_BHTD) * sin.to(x_BHTD.dtype)
