"""From what the user gives as --data to the texts that are captured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eyas.capture.plan import Corpus, Text
from eyas.data.prepared import Prepared, read_prepared
from eyas.data.render import Tokens
from eyas.errors import UserError


def read_corpus(data: Path) -> Corpus:
    """Raises UserError for a path that holds nothing prepared."""
    if not data.is_dir():
        raise UserError(f"prepared chats not found: {data}", remedy="make them: eyas data prepare")
    return corpus_of(read_prepared(data))


def corpus_of(prepared: Prepared) -> Corpus:
    """Training texts first, then those of validation."""
    return Corpus(
        texts=tuple(_texts(prepared.train)) + tuple(_texts(prepared.validation)),
        num_training=len(prepared.train),
        corpus_hash=prepared.corpus_hash,
        chat_template_hash=prepared.chat_template_hash,
        tokenizer_hash=prepared.tokenizer_hash,
    )


def _texts(samples: Iterable[Tokens]) -> Iterable[Text]:
    return (Text(sample.id, tuple(sample.token_ids), tuple(bool(kept) for kept in sample.loss_mask)) for sample in samples)
