"""Multi-head latent attention for a draft of DeepSeek's or Kimi's kind (DeepSeek-AI 2024, section 2.1).

    query     [embed | hidden] -> (q_a_proj -> norm ->) q_b_proj -> N heads of [nope | rope]
    key       [embed | hidden] -> kv_a_proj_with_mqa -> [latent | one rope slice, shared by all heads]
    and value latent -> norm -> kv_b_proj -> N heads of [nope | value]

RoPE turns the rope slices only. Keys are wider or narrower than values; the cache keeps both as they are.

Legend: B batch, T rows, H hidden size, N heads, D size of a key (nope + rope), R of its rope slice, E of a value.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eyas.draft.attention import Rotation, rotate
from eyas.draft.config import DraftConfig


class MlaAttention(nn.Module):
    """The same small interface as `DraftAttention`."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        assert config.mla is not None
        mla = self.mla = config.mla
        double, heads, eps = 2 * config.hidden_size, config.num_attention_heads, config.rms_norm_eps
        if mla.q_lora_rank is None:
            self.q_proj = nn.Linear(double, heads * mla.qk_head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(double, mla.q_lora_rank, bias=False)
            self.q_a_layernorm = LlamaRMSNorm(mla.q_lora_rank, eps)
            self.q_b_proj = nn.Linear(mla.q_lora_rank, heads * mla.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(double, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = LlamaRMSNorm(mla.kv_lora_rank, eps)
        self.kv_b_proj = nn.Linear(mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * mla.v_head_dim, config.hidden_size, bias=False)

    def query(self, both: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Rotated queries [B, N, T, D], times the factor by which scores differ from query · key / sqrt(D)."""
        if self.mla.q_lora_rank is None:
            flat = self.q_proj(both)
        else:
            flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(both)))
        query = self._heads(flat, self.mla.qk_head_dim)
        nope, rope = query.split([self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim], dim=-1)
        return torch.cat([nope, self._rotated(rope, rotation)], dim=-1) * self.mla.softmax_factor

    def key_value(self, both: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys [B, N, T, D] and values [B, N, T, E]."""
        mla = self.mla
        latent, rope_BTR = self.kv_a_proj_with_mqa(both).split([mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        heads = self._heads(self.kv_b_proj(self.kv_a_layernorm(latent)), mla.qk_nope_head_dim + mla.v_head_dim)
        nope, value = heads.split([mla.qk_nope_head_dim, mla.v_head_dim], dim=-1)
        rope = self._rotated(rope_BTR[:, None], rotation).expand(-1, nope.shape[1], -1, -1)
        return torch.cat([nope, rope], dim=-1), value

    def project(self, attended_BNTE: torch.Tensor) -> torch.Tensor:
        """[B, T, H]."""
        return self.o_proj(attended_BNTE.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor, size: int) -> torch.Tensor:
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    def _rotated(self, x_BNTR: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Neighbouring pairs are sorted apart first. Queries and keys end up in the same order, so scores stay the same."""
        if self.mla.rope_interleaved:
            x_BNTR = x_BNTR.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return rotate(x_BNTR, rotation)
