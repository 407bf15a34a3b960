"""The target's side of a round: one forward, its logits, and the states that the draft will read.

Between rounds slot b has the keys and values of every token but the last one emitted; that one is the first input of
the next forward.

Legend: B rows (the slots in use), T new tokens a row, S = n·H for n taps, H hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from eyas.capture.taps import TapReader, read_taps
from eyas.errors import UserError
from eyas.taps import Tap
from eyas.targets.cache import SlotCache
from eyas.targets.layout import require_prefill_only
from eyas.targets.target import Target

PAD_ID = 0  # any valid id: what it writes lies behind the slot's length


class TargetRunner:
    """Owns the target's cache and hooks. The hooks stay until `close`: setting them every forward costs time.

    Args:
        max_length: no row is longer; positions beyond it are padding, and are clamped for targets with a table of them.

    Raises UserError for a target that was loaded for context parallelism.
    """

    def __init__(self, target: Target, taps: Sequence[Tap], num_slots: int, capacity: int, max_length: int) -> None:
        require_prefill_only(target.layout, "the engine")
        self.target = target
        self._max_length = max_length
        self.cache = SlotCache(target.model.config, num_slots, capacity, target.device)
        self._hooks = contextlib.ExitStack()
        self._reader: TapReader | None = self._hooks.enter_context(read_taps(target, taps)) if taps else None
        self._listen(False)

    def close(self) -> None:
        self._hooks.close()

    def prefill(self, prompts: Sequence[Sequence[int]], slots: list[int] | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run whole prompts, padded on the right, into empty slots.

        Returns the logits [B, 1, V] behind each prompt's last token and the states [B, T, S], if there are taps.
        """
        self.cache.reset(slots)
        device = self.target.device
        longest = max(map(len, prompts))
        ids_BT = torch.tensor([[*prompt, *[PAD_ID] * (longest - len(prompt))] for prompt in prompts], device=device)
        count_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
        final_BTH, states_BTS = self._forward(ids_BT, slots)
        self.cache.advance(count_B)
        last_B1H = final_BTH[torch.arange(len(prompts), device=device), count_B - 1][:, None]
        return self.target.head(last_B1H), states_BTS

    def verify(self, ids_BT: torch.Tensor, slots: list[int] | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the last emitted token and the proposals behind it; `keep` must follow. Logits [B, T, V], states [B, T, S]."""
        final_BTH, states_BTS = self._forward(ids_BT, slots)
        return self.target.head(final_BTH), states_BTS

    def keep(self, num_tokens_B: torch.Tensor) -> None:
        """Make the first `num_tokens_B` tokens of the forward just run part of the context; the rest is forgotten."""
        self.cache.advance(num_tokens_B)

    def _forward(self, ids_BT: torch.Tensor, slots: list[int] | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        position_BT, mask = self.cache.begin(ids_BT.shape[1], slots)
        position_BT = position_BT.clamp(max=self._max_length - 1)
        self._listen(True)
        try:
            output = self.target.backbone(input_ids=ids_BT, position_ids=position_BT, attention_mask=mask, cache=self.cache, use_cache=True)
        except BaseException:
            with contextlib.suppress(UserError):  # half a forward was seen: forget it
                self._states()
            raise
        finally:
            self._listen(False)
        return output.last_hidden_state, self._states()

    def _states(self) -> torch.Tensor | None:
        return torch.cat(self._reader.states(), dim=-1) if self._reader is not None else None

    def _listen(self, listening: bool) -> None:
        """Other engines and `generate` may run the same target in between; their states are not ours."""
        if self._reader is not None:
            self._reader.listening = listening
