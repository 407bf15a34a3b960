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
from eyas.targets.describe import target_wiring


def read_corpus(data: Path, target: str, trust_remote_code: bool = False, *, other_template: bool = True) -> Corpus:
    """`data` is a prepared folder, or a JSONL file of chats, which is then prepared with the defaults.

    Args:
        other_template: take chats that were prepared with another chat template than the target's, and say so.

    Raises:
        WiringError: chats that were prepared with another tokenizer than the target's.
        UserError: a path that is neither, chats that cannot be prepared, or another template that is not wanted.
    """
    if data.is_dir():
        prepared = read_prepared(data)
        corpus, wiring = corpus_of(prepared), target_wiring(target, trust_remote_code)
        assert wiring.tokenizer_hash is not None
        corpus.require_tokenizer(wiring.tokenizer_hash)
        if corpus.chat_template_hash != wiring.chat_template_hash:
            problem = _another_template(data, str(prepared.info.get("target")), corpus.chat_template_hash, wiring.chat_template_hash)
            if not other_template:
                raise problem
            console.print(f"warning: {problem.what}", markup=False, highlight=False)
        return corpus
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


def _another_template(data: Path, made_for: str, theirs: str | None, targets: str | None) -> UserError:
    return UserError(
        f"{data} was prepared with another chat template than the target's",
        got=f"{str(theirs)[:16]}..., prepared for {made_for}",
        allowed="none: the target has no chat template" if targets is None else f"{targets[:16]}...",
        remedy="prepare the chats again with this target: eyas data prepare; if the other template is meant, add --allow-other-template",
    )


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
    return (Text(sample.id, sample.token_ids, sample.loss_mask) for sample in samples)
