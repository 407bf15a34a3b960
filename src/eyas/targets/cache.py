"""One key/value cache for plain decoding, speculative verification and batched generation.

Every row of the batch is a slot with a length of its own. New keys are written behind the slot's length and become
valid by `advance`; rolling back rejected tokens is setting the length back. The mask hides everything else, so the
model itself never needs to know that the rows are ragged.

Shapes: B slots, T new positions a slot, C capacity, S keys shown to attention, H key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from eyas.errors import UserError
from eyas.targets.attention_masks import MaskForm


class SlotCache(Cache):
    """What the layers keep of B sequences of unequal lengths, for any decoder whose states can be cut off by length.

    That is keys and values, or what stands for them (MLA's latent and its rotary slice), and the keys by which the
    indexer of a sparse attention picks positions (DeepSeek-V3.2).

    Raises UserError while constructing if the target has layers whose state cannot be rolled back by length
    (recurrent or linear-attention layers).
    """

    def __init__(self, config: Any, num_slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(layers=[])
        text = config.get_text_config(decoder=True)
        self._masks = MaskForm.of(config)
        self.num_slots, self.capacity, self.device = num_slots, capacity, device
        self.lengths_B = torch.zeros(num_slots, dtype=torch.long, device=device)
        self._keys: list[torch.Tensor | None] = [None] * text.num_hidden_layers
        self._values: list[torch.Tensor | None] = [None] * text.num_hidden_layers
        self._indexer_keys: list[torch.Tensor | None] = [None] * text.num_hidden_layers
        self._slots_B: torch.Tensor | slice = slice(None)
        self._write_BT: torch.Tensor | None = None
        self._span: tuple[int, int] | None = None
        self._shown = 0

    # -- one forward -------------------------------------------------------------------------------------------

    def begin(self, num_new: int, slots: list[int] | None = None) -> tuple[torch.Tensor, Any]:
        """Announce a forward of `num_new` tokens a slot. Returns position_ids [B, T] and the attention mask.

        Args:
            slots: the slots that the rows of the forward belong to; None means all of them, in order.
        """
        self._slots_B = slice(None) if slots is None else torch.tensor(slots, dtype=torch.long, device=self.device)
        start_B = self.lengths_B[self._slots_B]
        position_BT = start_B[:, None] + torch.arange(num_new, device=self.device)
        self._shown = int(start_B.max()) + num_new
        if self._shown > self.capacity:
            raise UserError(
                "the sequence is longer than the cache",
                got=self._shown,
                allowed=self.capacity,
                remedy="lower --max-new-tokens or raise --max-length",
            )
        uniform = bool((start_B == start_B[0]).all())
        self._span = (int(start_B[0]), num_new) if uniform else None
        self._write_BT = position_BT
        key_S = torch.arange(self._shown, device=self.device)
        return position_BT, self._masks.build(position_BT[:, None, :, None], key_S)

    def advance(self, num_tokens: torch.Tensor | int) -> None:
        """Make the first `num_tokens` [B] of the tokens just written valid; the rest is forgotten."""
        self.lengths_B[self._slots_B] += num_tokens

    def reset(self, slots: list[int] | None = None) -> None:
        if slots is None:
            self.lengths_B.zero_()
        else:
            self.lengths_B[torch.tensor(slots, dtype=torch.long, device=self.device)] = 0

    def grow(self, capacity: int) -> None:
        """Make room for longer sequences; what is stored stays."""
        for store in (self._keys, self._values, self._indexer_keys):
            for layer_idx, held in enumerate(store):
                if held is not None:
                    larger = held.new_zeros(*held.shape[:2], capacity, held.shape[3])
                    larger[:, :, : self.capacity] = held
                    store[layer_idx] = larger
        self.capacity = capacity

    # -- called by the model's layers --------------------------------------------------------------------------

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, T, D] behind each slot's length; return keys and values [B, H, S, D]."""
        return self._store(self._keys, layer_idx, key_states), self._store(self._values, layer_idx, value_states)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Store the indexer's keys [B, T, D] behind each slot's length; return [B, S, D]."""
        return self._store(self._indexer_keys, layer_idx, indexer_key_states[:, None])[:, 0]

    def _store(self, store: list[torch.Tensor | None], layer_idx: int, new_BHTD: torch.Tensor) -> torch.Tensor:
        held = store[layer_idx]
        if held is None:
            _, heads, _, size = new_BHTD.shape
            held = store[layer_idx] = new_BHTD.new_zeros(self.num_slots, heads, self.capacity, size)
        all_slots = isinstance(self._slots_B, slice)
        if self._span is not None and all_slots:
            start, count = self._span
            held[:, :, start : start + count] = new_BHTD
        else:
            rows = torch.arange(self.num_slots, device=self.device) if all_slots else self._slots_B
            assert self._write_BT is not None, "begin comes first"
            assert isinstance(rows, torch.Tensor)
            held[rows[:, None], :, self._write_BT] = new_BHTD.transpose(1, 2)
        shown = held[:, :, : self._shown]
        return shown if all_slots else shown[self._slots_B]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.lengths_B.max())

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._shown, 0

    @property
    def is_compileable(self) -> bool:
        return False
