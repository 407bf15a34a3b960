"""Scoring many tap choices fast: fc is linear, so every state goes through every slot's columns once, and a choice is a sum.

    no norm, or one norm a tap     hidden = Σ_s fc_s(norm_s(x_s)) + bias
    one norm over all taps         hidden = Σ_s fc_s(w_s·x_s) / sqrt(Σ_s |x_s|² / nH + eps) + bias

The score is the cross-entropy of the target's own tokens over the draft ids of these tokens and some others: smoother than
accuracy, and a fraction of the head. It only ranks; what it ranks first is measured exactly afterwards (`measure`).

Legend: B texts, T positions, S states, n slots, H hidden size of the target, D of the draft, R rows, M rows that count.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.errors import UserError
from eyas.evaluate.infer.evidence import Batch
from eyas.evaluate.infer.search import EMPTY
from eyas.targets.target import Target

_OTHER_IDS = 256


class FastScore:
    """`score(states)` for one state's number a slot; lower is better. Results are kept."""

    def __init__(self, target: Target, draft: Eagle3Draft, batch: Batch) -> None:
        self._batch, self._draft = batch, _without_fuse(draft)
        self._bias = draft.fc.bias
        self._norm_over_all = draft.config.norm_before_fc and not draft.config.fc_norm
        self._eps = draft.config.rms_norm_eps
        self._wide = draft.config.num_taps * draft.config.target_hidden_size
        self._parts = [[_project(draft, state, slot) for state in batch.states] for slot in range(draft.config.num_taps)]
        self._squares = [state.float().pow(2).sum(-1, keepdim=True) for state in batch.states]
        self._place_M, self._label_M, self._head_VD = _restricted_head(target, draft, batch)
        self.seen: dict[tuple[int, ...], float] = {}

    @torch.no_grad()
    def __call__(self, states: tuple[int, ...]) -> float:
        if states not in self.seen:
            output_BRD = unroll(self._draft, self._batch.token_BT, self._hidden(states), 1, self._batch.row_BR)[0]
            input_MD = self._draft.head_input(output_BRD).flatten(0, 1)[self._place_M]
            score = float(F.cross_entropy(F.linear(input_MD, self._head_VD).float(), self._label_M))
            self.seen[states] = score if score == score else math.inf  # a search would go round in circles over NaN
        return self.seen[states]

    def _hidden(self, states: Sequence[int]) -> torch.Tensor:
        used = [(slot, state) for slot, state in enumerate(states) if state != EMPTY]
        hidden_BTD = torch.stack([self._parts[slot][state] for slot, state in used]).sum(0)
        if self._norm_over_all:
            square = torch.stack([self._squares[state] for _, state in used]).sum(0)
            hidden_BTD = hidden_BTD * torch.rsqrt(square / self._wide + self._eps).to(hidden_BTD.dtype)
        return hidden_BTD if self._bias is None else hidden_BTD + self._bias


def _without_fuse(draft: Eagle3Draft) -> Eagle3Draft:
    """The same draft, shared weights and all, for hidden states that are fused already."""
    plain = copy.copy(draft)
    object.__setattr__(plain, "fuse", lambda hidden_BTD: hidden_BTD)
    return plain


@torch.no_grad()
def _project(draft: Eagle3Draft, state_BTH: torch.Tensor, slot: int) -> torch.Tensor:
    """What `state` adds to the fused state [B, T, D] if it stands in `slot`; a norm over all taps is finished with the sum."""
    size = draft.config.target_hidden_size
    columns = slice(slot * size, (slot + 1) * size)
    x_BTH = state_BTH.to(draft.fc.weight.dtype)
    if draft.config.norm_before_fc:
        x_BTH = x_BTH * draft.input_norm.weight[columns]
    if draft.config.fc_norm:  # behind the norm over all taps its common factor cancels, but for eps
        x_BTH = draft.fc_norm[slot](x_BTH)
    return F.linear(x_BTH, draft.fc.weight[:, columns])


@torch.no_grad()
def _restricted_head(target: Target, draft: Eagle3Draft, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(places of the rows whose token the draft knows, their labels among the kept ids, the kept rows of the head)."""
    labels = batch.label_BR.flatten()
    place_M = (batch.valid_BR.flatten() & draft.t2d[labels]).nonzero().flatten()
    ids_V = draft.to_target(torch.arange(draft.config.draft_vocab_size, device=labels.device))
    wanted = torch.searchsorted(ids_V, labels[place_M].unique())
    if len(place_M) == 0:
        raise UserError(
            "the draft knows none of the target's tokens in these texts",
            got=f"a draft vocabulary of {len(ids_V)} tokens",
            remedy="check d2t, and that the texts are the target's own",
        )
    generator = torch.Generator().manual_seed(0)
    others = torch.randperm(len(ids_V), generator=generator)[:_OTHER_IDS].to(labels.device)
    kept = torch.cat([wanted, others]).unique()
    head = target.head_rows(ids_V[kept]) if draft.config.lm_head_source == "target" else draft.head_weight[kept]
    return place_M, torch.searchsorted(ids_V[kept], labels[place_M]), head
