"""The draft's key/value cache: the same slots as the target's, one layer deep."""

from __future__ import annotations

import torch

from eyas.draft.model import Eagle3Draft
from eyas.targets.cache import SlotCache


class DraftCache(SlotCache):
    """Rows of step 0 come from target states; rows of later steps are written behind them and rolled back."""

    def __init__(self, draft: Eagle3Draft, num_slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(draft.config.layer_config(), num_slots, capacity, device)
