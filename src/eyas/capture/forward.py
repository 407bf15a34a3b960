"""One batched forward of the target over whole texts: hidden states at the taps, the final state, and its own top-1.

Right padding with an explicit mask; causal attention keeps what stands left of it untouched. The masks themselves
(sliding windows, chunks) are made by the model's own code, unless texts are packed or their positions are spread over ranks.

Shapes: B texts, T positions of the longest, N positions of all texts together, n taps, H hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import MoeModelOutputWithPast

from eyas.capture.parallel.prefill import run_share
from eyas.capture.taps import read_taps
from eyas.taps import Tap
from eyas.targets.attention_masks import MaskForm
from eyas.targets.target import Target

FINAL = Tap(None)
_LOGIT_BYTES = 256 << 20  # of one chunk of logits: whole texts times a large vocabulary would not fit
PAD_ID = 0  # any valid id: what the padding computes is cut off, and nothing left of it can see it


@dataclass(frozen=True)
class Captured:
    """One text. Shapes: states [T, n*H] in the order of the taps, final [T, H], top1 [T] (long; empty if not wanted)."""

    states: torch.Tensor
    final: torch.Tensor
    top1: torch.Tensor


@torch.no_grad()
def capture_batch(
    target: Target, token_ids: Sequence[Sequence[int]], taps: Sequence[Tap], want_top1: bool = True, packed: bool = False
) -> list[Captured]:
    """Run `token_ids` as one batch; every text must hold a token. Results stay on the target's device, in its dtype.

    Args:
        want_top1: also give the token that the target itself prefers after each position.
        packed: one text behind the other in one row, none of which sees another; else a row a text, padded.

    Raises:
        UserError: a tap that the target lacks, or one that did not fire exactly once.
    """
    assert all(token_ids), "a text without tokens"
    lengths = [len(ids) for ids in token_ids]
    wanted = tuple(dict.fromkeys((*taps, FINAL)))
    with read_taps(target, wanted) as reader:
        whole = run_backbone(target, token_ids, packed)
        by_tap = {tap: _texts(whole(state), lengths, packed) for tap, state in zip(wanted, reader.states(), strict=True)}
    final_NH = torch.cat(by_tap[FINAL])
    rows_NnH = torch.cat([torch.cat(by_tap[tap]) for tap in taps], dim=-1) if taps else final_NH[:, :0]
    top1_N = own_top1(target, final_NH) if want_top1 else final_NH.new_zeros(0, dtype=torch.long)
    top1_rows = top1_N.split(lengths) if want_top1 else [top1_N] * len(lengths)
    return [Captured(*one) for one in zip(rows_NnH.split(lengths), final_NH.split(lengths), top1_rows, strict=True)]


def _texts(state_BTH: torch.Tensor, lengths: Sequence[int], packed: bool) -> list[torch.Tensor]:
    return list(state_BTH[0].split(lengths)) if packed else [state_BTH[row, :length] for row, length in enumerate(lengths)]


def run_backbone(target: Target, token_ids: Sequence[Sequence[int]], packed: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """The target without its head, over a batch that is padded on the right or packed; its results are read by hooks.

    Returns what makes a whole state [B, T, H] of one that a hook saw, which is this rank's part under context parallelism.
    """
    ids_BT, mask_BT = pad([[token for ids in token_ids for token in ids]] if packed else token_ids, target.device)
    position_BT, document_BT = torch.arange(ids_BT.shape[1], device=target.device).expand_as(ids_BT), None
    if packed:
        position_BT = torch.cat([torch.arange(len(ids), device=target.device) for ids in token_ids])[None]
        document_BT = (position_BT == 0).cumsum(-1)
    if target.layout.cp > 1:
        return run_share(target, ids_BT, position_BT, document_BT).whole
    masks = mask_BT if document_BT is None else _document_masks(target, document_BT)
    target.backbone(input_ids=ids_BT, attention_mask=masks, position_ids=position_BT, use_cache=False)
    return lambda state_BTH: state_BTH


def _document_masks(target: Target, document_BT: torch.Tensor) -> Any:
    """A token sees those up to itself that belong to the same document."""
    place_T = torch.arange(document_BT.shape[1], device=target.device)
    allowed_B1TT = (document_BT[:, :, None] == document_BT[:, None])[:, None]
    return MaskForm.of(target.model.config).build(place_T[None, None, :, None], place_T, allowed_B1TT)


def pad(token_ids: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, T] padded on the right, and the mask [B, T] that is 1 where a text has a token."""
    longest = max(map(len, token_ids))
    ids_BT = torch.tensor([[*ids, *[PAD_ID] * (longest - len(ids))] for ids in token_ids], device=device)
    mask_BT = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in token_ids], device=device)
    return ids_BT, mask_BT


@torch.no_grad()
def own_top1(target: Target, final_NH: torch.Tensor) -> torch.Tensor:
    """The token [N] that the model's OWN code (head, scale, softcap and all) prefers, given its final states."""
    return torch.cat([logits_CV.argmax(-1) for logits_CV in own_logits(target, final_NH)])


def own_logits(target: Target, final_NH: torch.Tensor) -> Iterator[torch.Tensor]:
    """Logits [chunk, V] by the model's own forward, with its backbone's answer put in its place, a chunk at a time.

    `Target.head` says what a family does to its logits; this asks the model itself, so that the one can check the other.
    """
    for chunk_CH in final_NH.split(logit_rows(target, final_NH.element_size())):
        ids_1C = torch.full((1, len(chunk_CH)), PAD_ID, device=chunk_CH.device)
        with _backbone_answers(target, chunk_CH[None]):
            yield target.model(input_ids=ids_1C, use_cache=False).logits[0]


def logit_rows(target: Target, element_size: int) -> int:
    """How many rows of logits are held at a time."""
    return max(1, _LOGIT_BYTES // (target.vocab_size * element_size))


@contextlib.contextmanager
def _backbone_answers(target: Target, final_BTH: torch.Tensor) -> Iterator[None]:
    def answer(*args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=final_BTH)  # of all kinds of answers, the one with most fields

    backbone = target.backbone
    shadowed = vars(backbone).get("forward")  # accelerate's hooks put one there
    vars(backbone)["forward"] = answer
    try:
        yield
    finally:
        del vars(backbone)["forward"]
        if shadowed is not None:
            vars(backbone)["forward"] = shadowed
