"""Teaching a language model from nothing: whole chats, next-token loss on every token, AdamW with one cycle.

Shapes: B chats, T positions of the longest, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Chats = list[list[dict[str, str]]]


@dataclass(frozen=True)
class Teaching:
    """`batch_size` chats a step."""

    num_steps: int
    batch_size: int
    learning_rate: float
    warm_up: float = 0.1


def teach(
    model: Any,
    tokenizer: Any,
    chats: Chats,
    teaching: Teaching,
    seed: int,
    advance: Callable[[float], None] = lambda loss: None,
) -> None:
    """Train all parameters in place; afterwards the model is in evaluation mode.

    Args:
        chats: num_steps * batch_size of them, each seen once. Users' turns are learnt too, so that the model can write questions.
        advance: told the loss after every step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=teaching.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, teaching.learning_rate, total_steps=teaching.num_steps, pct_start=teaching.warm_up
    )
    model.train()
    for batch in _batches_of_like_length(chats, teaching.batch_size, seed):
        ids_BT, mask_BT = encode_chats(tokenizer, batch)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits_BTV[mask_BT[:, 1:]], ids_BT[:, 1:][mask_BT[:, 1:]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        advance(loss.item())
    model.eval()


def encode_chats(tokenizer: Any, chats: Sequence[list[dict[str, str]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, T] padded on the right, and a mask [B, T] of the real ones."""
    rows = [tokenizer.encode(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False) for chat in chats]
    longest = max(map(len, rows))
    ids_BT = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    mask_BT = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    return ids_BT, mask_BT


def _batches_of_like_length(chats: Chats, batch_size: int, seed: int) -> list[Chats]:
    """Sorted by length before they are cut, so that little is padding; then in random order."""
    ordered = sorted(chats, key=lambda chat: sum(len(message["content"]) + 20 for message in chat))
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    random.Random(seed).shuffle(batches)
    return batches
