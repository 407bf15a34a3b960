"""From what the user gives as --data to the texts that are captured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from eyas.capture.plan import Corpus, Text
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.prepared import SPLITS, Prepared, read_prepared
from eyas.data.render import Tokens
from eyas.errors import UserError
from eyas.progress import console, counted


def read_corpus(data: Path, target: str, trust_remote_code: bool = False) -> Corpus:
    """`data` is a prepared folder, or a JSONL file of chats, which is then prepared with the defaults.

    Raises UserError for a path that is neither, or chats that cannot be prepared.
    """
    if data.is_dir():
        return corpus_of(read_prepared(data))
    if not data.is_file():
        raise UserError(f"--data does not exist: {data}", allowed="a folder of eyas data prepare, or a JSONL file of chats")
    with tempfile.TemporaryDirectory() as folder:
        info = prepare(target, [data], Path(folder) / "prepared", PrepareSettings(), trust_remote_code=trust_remote_code)
        skipped = "; ".join(f"{count} x {reason}" for reason, count in info["skipped_by_reason"].items()) or "none"
        num_cut_off = sum(info[name]["answers_cut_off"] for name in SPLITS)
        cut_off = f"; {num_cut_off} cut off at the limit: their end is not trained" if num_cut_off else ""
        console.print(
            f"prepared {data.name}: {counted(info['chats_read'], 'chat')} read, skipped: {skipped}{cut_off}", markup=False, soft_wrap=True
        )
        return corpus_of(read_prepared(Path(folder) / "prepared"))


def corpus_of(prepared: Prepared) -> Corpus:
    """Training texts first, then those of validation."""
    return Corpus(
        texts=tuple(_texts(prepared.train)) + tuple(_texts(prepared.validation)),
        num_training=len(prepared.train),
        corpus_hash=prepared.info["corpus_hash"],
        chat_template_hash=prepared.info["chat_template_hash"],
        tokenizer_hash=prepared.info["tokenizer_hash"],
    )


def _texts(samples: Iterable[Tokens]) -> Iterable[Text]:
    return (Text(sample.id, tuple(sample.token_ids), tuple(bool(kept) for kept in sample.loss_mask)) for sample in samples)
