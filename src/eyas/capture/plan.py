"""Which texts are captured, and the fixed plan by which: texts of like length in a batch, batches in shards."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.data.store import Plan
from eyas.errors import UserError, WiringError


@dataclass(frozen=True)
class Text:
    """One prepared chat: token ids, and for each whether it belongs to an answer."""

    id: str
    token_ids: Sequence[int]
    loss_mask: Sequence[int]

    @property
    def num_scored_rows(self) -> int:
        """Rows p whose tokens p+1 and p+2 are both answer tokens."""
        return sum(1 for a, b in zip(self.loss_mask[1:], self.loss_mask[2:], strict=False) if a and b)


@dataclass(frozen=True)
class Corpus:
    """All texts of a capture, training before validation, and what they were made with."""

    texts: tuple[Text, ...]
    num_training: int
    corpus_hash: str
    chat_template_hash: str | None
    tokenizer_hash: str

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(text.token_ids) for text in self.texts)

    def first(self, count: int | None) -> Corpus:
        """The first `count` texts of the training part and, in proportion, of the validation part."""
        if count is None or count >= len(self.texts):
            return self
        assert count >= 1
        kept = max(1, round(count * self.num_training / len(self.texts))) if self.num_training else 0
        texts = self.texts[:kept] + self.texts[self.num_training :][: count - kept]
        return Corpus(texts, kept, self.corpus_hash, self.chat_template_hash, self.tokenizer_hash)

    def require_tokenizer(self, tokenizer_hash: str) -> None:
        """Raises WiringError if the ids are those of another tokenizer than the target's."""
        if self.tokenizer_hash != tokenizer_hash:
            raise WiringError(
                "the chats were prepared with another tokenizer",
                got=f"{self.tokenizer_hash[:16]}...",
                allowed=f"{tokenizer_hash[:16]}..., the target's",
                remedy="prepare them again with this target: eyas data prepare",
            )

    def hash(self) -> str:
        """Over the very ids and masks, whatever file they came from."""
        digest = hashlib.sha256(b"[")
        for number, text in enumerate(self.texts):  # one at a time: written out, a large corpus takes many times its own room
            written = repr((text.id, tuple(text.token_ids), tuple(map(bool, text.loss_mask))))
            digest.update((", " * bool(number) + written).encode())
        digest.update(b"]")
        return digest.hexdigest()

    def token_counts(self, vocab_size: int) -> torch.Tensor:
        """Counts [V] over answer tokens, of the training texts where there are any."""
        texts = self.texts[: self.num_training] or self.texts
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for text in texts:
            ids_T, mask_T = torch.tensor(text.token_ids, dtype=torch.long), torch.tensor(text.loss_mask, dtype=torch.bool)
            counts += torch.bincount(ids_T[mask_T], minlength=vocab_size)
        return counts

    def check(self, vocab_size: int, max_length: int) -> None:
        """Raises UserError for a text that the target cannot read, or if there is nothing to learn."""
        for text in self.texts:
            if not text.token_ids or len(text.token_ids) != len(text.loss_mask):
                raise UserError(
                    f"sample {text.id} is empty, or its mask has another length",
                    got=f"{len(text.token_ids)} ids, {len(text.loss_mask)} mask",
                )
            if not 0 <= min(text.token_ids) <= max(text.token_ids) < vocab_size:
                raise UserError(
                    f"sample {text.id} holds ids outside the target's vocabulary", got=max(text.token_ids), allowed=f"0 to {vocab_size - 1}"
                )
            if len(text.token_ids) > max_length:
                raise UserError(f"sample {text.id} is longer than the target's positions", got=len(text.token_ids), allowed=max_length)
        if not any(text.num_scored_rows for text in self.texts):
            raise UserError(
                "no sample has two answer tokens in a row: nothing to train on", remedy="check the loss mask: eyas data prepare --show 3"
            )


def make_plan(lengths: Sequence[int], max_batch_tokens: int, shard_tokens: int) -> Plan:
    """Batches of like length within `max_batch_tokens` (padding included), in shards of at least `shard_tokens`.

    The largest batch runs first, so that a shortage of memory shows at once; the others in a fixed random order, so that
    a shard holds texts of all lengths and the rate of the first minutes holds for the rest.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    for index in order:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    batches.sort(key=lambda batch: -padded_tokens(batch, lengths))
    rest = batches[1:]
    random.Random(0).shuffle(rest)
    shards: Plan = [[]]
    held = 0
    for batch in [*batches[:1], *rest]:
        if held >= shard_tokens:
            shards.append([])
            held = 0
        shards[-1].append(batch)
        held += sum(lengths[index] for index in batch)
    return shards


def padded_tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    return max(lengths[index] for index in batch) * len(batch)
