"""The draft's side of a round: a chain of K proposals.

    target has      x0 .. xL, states s0 .. s(L-1)         the draft's rows 0 .. L-1 are (s[p], x[p+1])
    step 0          rows not read yet, from fused states    the last of them, row p, proposes x[p+2]
    step k          row p, the proposal of step k-1 and the output of step k-1; position p+k, written behind row p

What steps 1.. wrote is rolled back: the next round's step 0 writes those rows again, from the target's own states of
the tokens that were accepted. A draft that kept its own would read a context that it was never trained on.

Legend: B rows (the slots in use), T rows to read, K proposals, H hidden size, S = n·H_target, V draft vocabulary,
W target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.draft.cache import DraftCache
from eyas.draft.model import Eagle3Draft
from eyas.engine.sampling import SamplingBatch, draw, greedy, probabilities
from eyas.engine.target_runner import PAD_ID


@dataclass(frozen=True)
class Proposal:
    """Target ids [B, K], and the distributions they were drawn from [B, K, W]; None if every row is greedy."""

    token_BK: torch.Tensor
    probs_BKW: torch.Tensor | None


class Drafter:
    """Owns the draft's cache and, for each slot, the rows that the target has settled but the draft has not read."""

    def __init__(self, draft: Eagle3Draft, num_slots: int, capacity: int, num_draft_tokens: int, device: torch.device) -> None:
        self.draft = draft
        self.cache = DraftCache(draft, num_slots, capacity, device)
        self._num_slots = num_slots
        self._target_ids_V = draft.to_target(torch.arange(draft.config.draft_vocab_size, device=device))
        width = num_draft_tokens + 1  # a round settles at most so many rows
        self._token_BT = torch.full((num_slots, width), PAD_ID, dtype=torch.long, device=device)
        self._hidden_BTH = torch.zeros(num_slots, width, draft.config.hidden_size, dtype=draft.norm.weight.dtype, device=device)
        self._num_unread = [0] * num_slots

    def prefill(
        self, prompts: Sequence[Sequence[int]], states_BTS: torch.Tensor, first_token_B: torch.Tensor, slots: list[int] | None
    ) -> None:
        """Read rows 0 .. L-2 of every prompt; row L-1, which pairs with the first emitted token, is left for the round."""
        device = first_token_B.device
        self.cache.reset(slots)
        hidden_BTH = self.draft.fuse(states_BTS.to(self._hidden_BTH.dtype))
        num_rows = [len(prompt) - 1 for prompt in prompts]
        if max(num_rows) > 0:
            longest = max(num_rows)
            token_BT = torch.tensor([[*prompt[1:], *[PAD_ID] * (longest - len(prompt) + 1)] for prompt in prompts], device=device)
            position_BT, mask = self.cache.begin(longest, slots)
            self.draft(token_BT, hidden_BTH[:, :longest], position_BT, self.cache, mask)
            self.cache.advance(torch.tensor(num_rows, device=device))
        rows_B = torch.arange(len(prompts), device=device)
        last_B1H = hidden_BTH[rows_B, torch.tensor(num_rows, device=device)][:, None]
        self._store(first_token_B[:, None], last_B1H, [1] * len(prompts), slots)

    def settle(self, token_BT: torch.Tensor, states_BTS: torch.Tensor, num_rows: list[int], slots: list[int] | None) -> None:
        """Take note of the rows that a round settled: state of an input of the target with the token emitted behind it."""
        hidden_BTH = self.draft.fuse(states_BTS.to(self._hidden_BTH.dtype))
        self._store(token_BT, hidden_BTH, num_rows, slots)

    def propose(self, num_proposals: int, sampling: SamplingBatch, uniform_BK: torch.Tensor | None, slots: list[int] | None) -> Proposal:
        """Draft `num_proposals` (at least one) tokens for every row.

        Args:
            uniform_BK: random numbers in [0, 1), one a proposal; not read if every row is greedy.
        """
        token_BT, hidden_BTH, num_rows = self._unread(slots)
        tokens: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        for step in range(num_proposals):
            position_BT, mask = self.cache.begin(token_BT.shape[1], slots)
            output_BTH = self.draft(token_BT, hidden_BTH, position_BT, self.cache, mask)
            hidden_BTH = output_BTH[:, -1:] if step > 0 else _last_rows(output_BTH, num_rows)
            self.cache.advance(1 if step > 0 else torch.tensor(num_rows, device=token_BT.device))
            logits_B1V = self.draft.logits(hidden_BTH)
            if sampling.all_greedy:
                chosen_B1 = greedy(logits_B1V, "draft")
            else:
                assert uniform_BK is not None
                probs_BV = probabilities(logits_B1V, sampling, "draft")[:, 0]
                probs.append(probs_BV)
                chosen_B1 = draw(probs_BV, uniform_BK[:, step])[:, None]
            token_BT = self._target_ids_V[chosen_B1]
            tokens.append(token_BT)
        self.cache.advance(1 - num_proposals)
        for slot in range(self._num_slots) if slots is None else slots:
            self._num_unread[slot] = 0
        return Proposal(torch.cat(tokens, dim=1), self._on_target_vocabulary(probs) if probs else None)

    def _on_target_vocabulary(self, probs: list[torch.Tensor]) -> torch.Tensor:
        """Probabilities [B, K, W]: zero for every token that the draft has not."""
        probs_BKV = torch.stack(probs, dim=1)
        return probs_BKV.new_zeros(*probs_BKV.shape[:2], self.draft.config.vocab_size).index_copy_(2, self._target_ids_V, probs_BKV)

    def _store(self, token_BT: torch.Tensor, hidden_BTH: torch.Tensor, num_rows: list[int], slots: list[int] | None) -> None:
        width = token_BT.shape[1]
        chosen = slice(None) if slots is None else slots
        self._token_BT[chosen, :width] = token_BT
        self._hidden_BTH[chosen, :width] = hidden_BTH
        for slot, count in zip(range(self._num_slots) if slots is None else slots, num_rows, strict=True):
            self._num_unread[slot] = count

    def _unread(self, slots: list[int] | None) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Tokens and fused states of the rows to read; what pads the shorter rows is replaced, whatever it is."""
        num_rows = [self._num_unread[slot] for slot in (range(self._num_slots) if slots is None else slots)]
        assert min(num_rows) > 0, "a slot without a settled row cannot propose"
        width = max(num_rows)
        chosen = slice(None) if slots is None else slots
        token_BT, hidden_BTH = self._token_BT[chosen, :width], self._hidden_BTH[chosen, :width]
        if min(num_rows) < width:
            is_row_BT = torch.arange(width, device=token_BT.device) < torch.tensor(num_rows, device=token_BT.device)[:, None]
            token_BT = torch.where(is_row_BT, token_BT, PAD_ID)
            hidden_BTH = torch.where(is_row_BT[..., None], hidden_BTH, 0.0)
        return token_BT, hidden_BTH, num_rows


def _last_rows(output_BTH: torch.Tensor, num_rows: list[int]) -> torch.Tensor:
    """The output of each row's last real position: [B, 1, H]."""
    if len(num_rows) == 1:
        return output_BTH[:, num_rows[0] - 1 : num_rows[0]]
    last_B = torch.tensor(num_rows, device=output_BTH.device) - 1
    return output_BTH[torch.arange(len(num_rows), device=output_BTH.device), last_B][:, None]
