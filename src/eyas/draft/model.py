"""The EAGLE-3 draft (Li et al. 2025): one class for training, decoding and diagnosis.

    states of n taps -> (norms) -> fc -> hidden                                  once for every target state
    [norm(embed(token[p+1])) | norm(hidden[p])] -> layer -> output[p]            step 0
    [norm(embed(token[p+2])) | norm(output[p])] -> layer -> output'[p]           step 1, and so on
    lm_head(norm(output)) -> logits over the draft vocabulary -> d2t -> target ids

Legend: B batch, T rows, n taps, S = n·H_target, H hidden size, V draft vocabulary, D size of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eyas.draft.config import DraftConfig
from eyas.draft.layer import DraftLayer
from eyas.targets.target import Target


class Eagle3Draft(nn.Module):
    """Its parameter names are those of the EAGLE reference checkpoints (`midlayer.*`, `fc`, `norm`, `lm_head`).

    An embedding or head that belongs to the target is held but not owned: it is neither trained nor stored with the draft.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        wide = config.num_taps * config.target_hidden_size
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(wide, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_taps))
        self.fc = nn.Linear(wide, config.hidden_size, bias=config.fc_bias)
        self.midlayer = DraftLayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.lm_head_source == "draft":
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.full((config.vocab_size,), config.full_vocabulary))
        self._embed: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._target_head: Callable[[torch.Tensor], torch.Tensor] | None = None

    # -- parts that do not belong to the draft -----------------------------------------------------------------

    def use_target(self, target: Target) -> None:
        """Read from the target what the draft has not of its own: the embedding, the head, both or neither."""
        if not self.config.own_embedding:
            self.use_embedding(target.embed)
        if self.config.lm_head_source == "target":
            object.__setattr__(self, "_target_head", target.head)

    def use_embedding(self, embed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Read token embeddings from the target's module (with the scale that some families apply there)."""
        assert not self.config.own_embedding, "the draft has an embedding of its own"
        object.__setattr__(self, "_embed", embed)  # not a submodule: not moved, trained or saved with the draft

    def share_target_of(self, other: Eagle3Draft) -> None:
        """Read from the same target as `other`, if it has one."""
        object.__setattr__(self, "_embed", other._embed)
        object.__setattr__(self, "_target_head", other._target_head)

    def set_vocab_map(self, d2t: torch.Tensor, t2d: torch.Tensor) -> None:
        """d2t [V] holds offsets: target id = i + d2t[i]; t2d [V_target] marks the tokens that the draft knows."""
        self.d2t.copy_(d2t)
        self.t2d.copy_(t2d)

    # -- one step ----------------------------------------------------------------------------------------------

    def embed(self, token_BT: torch.Tensor) -> torch.Tensor:
        if self.config.own_embedding:
            return self.embed_tokens(token_BT)
        assert self._embed is not None, "use_target or use_embedding comes first"
        return self._embed(token_BT)

    def fuse(self, states_BTS: torch.Tensor) -> torch.Tensor:
        """The target's tapped states, concatenated in tap order, to hidden [B, T, H]."""
        if self.config.norm_before_fc:
            states_BTS = self.input_norm(states_BTS)
        if self.config.fc_norm:
            parts = states_BTS.chunk(self.config.num_taps, dim=-1)
            states_BTS = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(states_BTS)

    def forward(
        self, token_BT: torch.Tensor, hidden_BTH: torch.Tensor, position_BT: torch.Tensor, cache: Any, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """One decoding step: rows are appended to `cache` and see what `mask` [B, 1, T, S] lets them see.

        Returns the state to feed back [B, T, H]; `logits` reads it too.
        """
        layer = self.midlayer
        both, residual = layer.inputs(self.embed(token_BT), hidden_BTH)
        rotation = layer.rotation(position_BT, both)
        keys, values = cache.update(*layer.key_value(both, rotation), 0)
        attended = _attend(layer.query(both, rotation), keys, values, mask)
        return self.feedback(layer.output(attended, residual))

    def feedback(self, output_BTH: torch.Tensor) -> torch.Tensor:
        return self.norm(output_BTH) if self.config.norm_output else output_BTH

    def logits(self, fed_back_BTH: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of what `forward` returned."""
        input_BTH = self.head_input(fed_back_BTH)
        if self.config.lm_head_source == "draft":
            return self.lm_head(input_BTH)
        if self.config.lm_head_source == "embedding":
            return F.linear(input_BTH, self.embed_tokens.weight)
        assert self._target_head is not None, "use_target comes first"
        return self._target_head(input_BTH)

    @property
    def head_weight(self) -> torch.Tensor:
        """The rows [V, H] that logits are made with, for a loss that does it in its own way; a head of the draft's own only."""
        assert self.config.lm_head_source != "target", "the target's head is not trained"
        return self.embed_tokens.weight if self.config.lm_head_source == "embedding" else self.lm_head.weight

    def head_input(self, fed_back_BTH: torch.Tensor) -> torch.Tensor:
        """What lm_head reads: normed once, whether or not the fed-back state was normed already."""
        return fed_back_BTH if self.config.norm_output else self.norm(fed_back_BTH)

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Draft-vocabulary ids to target ids, any shape."""
        return draft_ids + self.d2t[draft_ids]


def _attend(query_BNTD: torch.Tensor, key_BKSD: torch.Tensor, value_BKSE: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention [B, N, T, E]; query heads of one group share keys, so a group is laid along the rows."""
    batch, heads, rows, size = query_BNTD.shape
    groups = heads // key_BKSD.shape[1]
    if groups == 1:
        return F.scaled_dot_product_attention(query_BNTD, key_BKSD, value_BKSE, attn_mask=mask)
    grouped = query_BNTD.reshape(batch, -1, groups * rows, size)
    if mask is not None and rows > 1:
        mask = mask.repeat(1, 1, groups, 1)
    return F.scaled_dot_product_attention(grouped, key_BKSD, value_BKSE, attn_mask=mask).reshape(batch, heads, rows, -1)
