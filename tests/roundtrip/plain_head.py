"""An EAGLE-3 head's forward pass in plain arithmetic, written from the formats' descriptions and without Eyas's modules.

Tensors are those of a checkpoint's file, by that project's own keys with its layer's prefix taken off.

Legend: T rows, S rows seen, N heads, D size of a head, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Head:
    """What a project's code does with the tensors; `scaling` as in a config, `mla` holds nope, rope and latent sizes."""

    tensors: Tensors
    num_heads: int
    rope_dim: int
    theta: float = 1e4
    scaling: Mapping[str, Any] = field(default_factory=dict)
    eps: float = 1e-5
    norm_before_residual: bool = False
    norm_output: bool = False
    mla: Mapping[str, int] = field(default_factory=dict)
    softmax_factor: float = 1.0

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self.tensors.get(name + ".bias")
        out = x @ self.tensors[name + ".weight"].T
        return out if bias is None else out + bias

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.tensors[name + ".weight"]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        if "input_norm.weight" in self.tensors:
            states = self.norm("input_norm", states)
        count = sum(name.startswith("fc_norm.") for name in self.tensors)
        if count:
            states = torch.cat([self.norm(f"fc_norm.{slot}", part) for slot, part in enumerate(states.chunk(count, -1))], -1)
        return self.linear("fc", states)

    def two_steps(self, states: torch.Tensor, embedded: torch.Tensor, next_embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of step 0 on all rows [T, V], and of step 1 behind the last row [1, V]."""
        rows = len(states)
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        output = self._layer(self.fuse(states), embedded, torch.arange(rows), seen)
        fed_back = self.norm("norm", output) if self.norm_output else output
        later = self._layer(fed_back[-1:], next_embedded[None], torch.tensor([rows]), seen)
        return self.linear("lm_head", self.norm("norm", output)), self.linear("lm_head", self.norm("norm", later))

    def _layer(self, hidden: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        normed = self.norm("hidden_norm", hidden)
        both = torch.cat([self.norm("input_layernorm", embedded), normed], -1)
        query, key, value = self._latent(both, positions) if self.mla else self._plain(both, positions)
        seen.append((key, value))
        keys, values = (torch.cat(parts) for parts in zip(*seen, strict=True))
        scores = torch.einsum("tnd,snd->nts", query, keys) / math.sqrt(query.shape[-1]) * self.softmax_factor
        future = torch.arange(len(keys))[None] > positions[:, None]
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        attended = torch.einsum("nts,snd->tnd", weights, values).flatten(1)
        hidden = (normed if self.norm_before_residual else hidden) + self.linear("self_attn.o_proj", attended)
        inner = self.norm("post_attention_layernorm", hidden)
        gate = self.linear("mlp.gate_proj", inner)
        return hidden + self.linear("mlp.down_proj", gate * torch.sigmoid(gate) * self.linear("mlp.up_proj", inner))

    def _plain(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = (self.linear(f"self_attn.{name}_proj", both).unflatten(-1, (-1, self.rope_dim)) for name in "qkv")
        if "self_attn.q_norm.weight" in self.tensors:
            query, key = self.norm("self_attn.q_norm", query), self.norm("self_attn.k_norm", key)
        cos, sin = self._rotation(positions)
        half = self.rope_dim // 2

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x[..., :half], x[..., half:]
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        groups = query.shape[1] // key.shape[1]
        return turned(query), turned(key).repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)

    def _latent(self, both: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        nope, latent = self.mla["nope"], self.mla["latent"]
        low = self.norm("self_attn.q_a_layernorm", self.linear("self_attn.q_a_proj", both))
        query = self.linear("self_attn.q_b_proj", low).unflatten(-1, (self.num_heads, -1))
        shared = self.linear("self_attn.kv_a_proj_with_mqa", both)
        unpacked = self.linear("self_attn.kv_b_proj", self.norm("self_attn.kv_a_layernorm", shared[:, :latent]))
        unpacked = unpacked.unflatten(-1, (self.num_heads, -1))
        cos, sin = self._rotation(positions)

        def turned(x: torch.Tensor) -> torch.Tensor:  # neighbouring columns
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

        rope = turned(shared[:, None, latent:]).expand(-1, self.num_heads, -1)
        return (
            torch.cat([query[..., :nope], turned(query[..., nope:])], -1),
            torch.cat([unpacked[..., :nope], rope], -1),
            unpacked[..., nope:],
        )

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies, factor = turning(self.rope_dim, self.theta, self.scaling)
        angles = positions[:, None, None].double() * frequencies
        return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def turning(dim: int, theta: float, scaling: Mapping[str, Any]) -> tuple[torch.Tensor, float]:
    """RoPE's frequencies, and the factor on cos and sin: plain, linear, llama3 and DeepSeek's YaRN."""
    plain = [theta ** (-column / dim) for column in range(0, dim, 2)]
    kind = scaling.get("type", scaling.get("rope_type", "default"))
    if kind == "default":
        return torch.tensor(plain).double(), 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return torch.tensor([value / factor for value in plain]).double(), 1.0
    old = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        shares = [min(1.0, max(0.0, (old * value / (2 * math.pi) - low) / (high - low))) for value in plain]
        return torch.tensor([value * (share + (1 - share) / factor) for value, share in zip(plain, shares, strict=True)]).double(), 1.0
    assert kind == "yarn", kind
    ends = [dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (scaling["beta_fast"], scaling["beta_slow"])]
    first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dim - 1)
    slow = [min(1.0, max(0.0, (column - first) / max(last - first, 1e-3))) for column in range(dim // 2)]
    mixed = [value * (1 - part + part / factor) for value, part in zip(plain, slow, strict=True)]
    scales = [0.1 * scaling[name] * math.log(factor) + 1.0 for name in ("mscale", "mscale_all_dim")]
    return torch.tensor(mixed).double(), scales[0] / scales[1]
