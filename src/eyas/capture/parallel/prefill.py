"""A prefill whose positions are spread over context-parallel ranks.

Each rank computes the rows of its own positions. Before each attention the keys and values of all ranks are gathered, in the
order of the text, through the place where the model's own code keeps its cache: with multi-head latent attention that is the
compressed latent, with a sparse attention the indexer's keys as well. Nothing is kept from one layer to the next, so decoding
cannot go on from here.

Activations, scores and masks shrink with the number of ranks. Gathered keys and the weights do not.

Legend: B texts, T positions, P padded positions, S positions of this rank.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from eyas.capture.parallel.share import Share
from eyas.errors import UserError
from eyas.targets.attention_masks import MaskForm
from eyas.targets.target import Target

_BY_LENGTH = ("dynamic", "longrope")  # RoPE types whose frequencies depend on the longest position of a call


class GatheringCache(Cache):
    """Answers every layer's new keys with those of all ranks, and stores nothing."""

    def __init__(self, share: Share) -> None:
        super().__init__(layers=[])
        self._share = share

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of keys and values [B, heads, S, D], or latent and rotary slice, those of all positions [B, heads, P, D]."""
        return self._share.gather(key_states, 2), self._share.gather(value_states, 2)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Of the indexer's keys [B, S, D] those of all positions. Out of order its top-k would pick others where scores tie."""
        return self._share.gather(indexer_key_states, 1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    @property
    def is_compileable(self) -> bool:
        return False


def run_share(target: Target, ids_BT: torch.Tensor, position_BT: torch.Tensor, document_BT: torch.Tensor | None) -> Share:
    """The target without its head over this rank's positions; what hooks see are parts, for `Share.whole` to put together.

    Args:
        position_BT: within each document.
        document_BT: which document of its row a token belongs to; None means that a row is one document.

    Raises UserError for targets whose attention or RoPE needs to see the whole row at once.
    """
    _check(target)
    share = Share.of(target.layout, ids_BT.shape[1], target.device)
    ids_BP, position_BP = _padded(ids_BT, share.padded), _padded(position_BT, share.padded)
    allowed = None
    if document_BT is not None:
        document_BP = _padded(document_BT, share.padded)
        allowed = (document_BP[:, share.mine_S, None] == document_BP[:, None])[:, None]
    place_P = torch.arange(share.padded, device=target.device)
    masks = MaskForm.of(target.model.config).build(share.mine_S[None, None, :, None].expand(len(ids_BT), -1, -1, -1), place_P, allowed)
    target.backbone(
        input_ids=ids_BP[:, share.mine_S],
        position_ids=position_BP[:, share.mine_S],
        attention_mask=masks,
        cache=GatheringCache(share),
        use_cache=True,
    )
    return share


def _padded(row_BT: torch.Tensor, length: int) -> torch.Tensor:
    """The last token said again: padding behind a text is seen by none of its rows, and its id and position are valid."""
    return torch.cat([row_BT, row_BT[:, -1:].expand(-1, length - row_BT.shape[1])], dim=1)


def _check(target: Target) -> None:
    kind = target.config._attn_implementation
    if kind not in ("sdpa", "eager"):
        raise UserError("context parallelism needs an attention that takes a mask", got=kind, allowed="sdpa, eager")
    rope = getattr(target.config, "rope_parameters", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rope, *rope.values()) if isinstance(part, dict)}
    if kinds & set(_BY_LENGTH):
        raise UserError(
            "this target's RoPE depends on the longest position of a call, which each context-parallel rank sees differently",
            got=", ".join(sorted(kinds & set(_BY_LENGTH))),
            remedy="capture it with --cp 1",
        )
