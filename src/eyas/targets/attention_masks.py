"""Which keys a query may see, in the form that the target's own code takes: one mask, or one for each kind of layer.

Shapes: B rows, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from eyas.errors import UserError

# Layers whose states can be cut off by length. An indexer (DeepSeek-V3.2) narrows the full mask by itself.
_BY_LENGTH = {"full_attention", "sliding_attention", "indexed_attention"}


@dataclass(frozen=True)
class MaskForm:
    """kinds: of the target's layers. sliding_window: of those that have one. adds: the mask is added to the scores."""

    kinds: frozenset[str]
    sliding_window: int | None
    adds: bool

    @staticmethod
    def of(config: Any) -> MaskForm:
        """Raises UserError for layers that keep no keys (recurrent, linear), or see them in another way (chunked)."""
        text = config.get_text_config(decoder=True)
        kinds = list(getattr(text, "layer_types", None) or [])
        odd = sorted(set(kinds) - _BY_LENGTH)
        if odd:
            raise UserError(
                "this target keeps states that cannot be rolled back or gathered by position",
                got=odd,
                allowed=", ".join(sorted(_BY_LENGTH)),
            )
        window: int | None = text.sliding_window if "sliding_attention" in kinds else None
        if not kinds and getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
            window, kinds = text.sliding_window, ["sliding_attention"]
        return MaskForm(frozenset(kinds or ["full_attention"]), window, text._attn_implementation == "eager")

    def build(self, query_B1T1: torch.Tensor, key_S: torch.Tensor, allowed: torch.Tensor | None = None) -> Any:
        """Masks [B, 1, T, S] from the places of queries and keys: a query sees the keys up to its own.

        Args:
            allowed: [B, 1, T, S], what may be seen at all; None allows everything.
        """
        full = key_S <= query_B1T1
        if allowed is not None:
            full = full & allowed
        masks = dict.fromkeys(self.kinds, full)
        if self.sliding_window is not None:
            masks["sliding_attention"] = full & (key_S > query_B1T1 - self.sliding_window)
        if self.adds:
            masks = {kind: torch.where(mask, 0.0, torch.finfo(torch.float32).min) for kind, mask in masks.items()}
        return masks[next(iter(self.kinds))] if len(self.kinds) == 1 else masks
