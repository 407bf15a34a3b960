"""From chat files to a prepared folder: render, drop duplicates, split, count, write.

The split goes by the first question, so that one question asked twice never stands on both sides, and by a hash, so
that it depends neither on the order of the files nor on a seed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.data.chats import Chat, read_chats
from eyas.data.prepared import SPLITS, corpus_hash, read_prepared, write_prepared
from eyas.data.render import ChatRenderer, SkippedChat, Tokens
from eyas.errors import UserError
from eyas.files import atomic_folder, check_folder_free, sha256_file, sha256_text
from eyas.progress import Progress, console
from eyas.targets.loading import load_config, load_stop_ids, load_tokenizer, tokenizer_hash


@dataclass(frozen=True)
class PrepareSettings:
    """`validation` is the share of chats kept out of training."""

    max_length: int = 1024
    validation: float = 0.05

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise UserError("--max-length is too small", got=self.max_length, allowed="3 or more: a row needs three tokens")
        if not 0.0 <= self.validation < 1.0:
            raise UserError("--validation must be a share", got=self.validation, allowed="0 to below 1")


@dataclass(frozen=True)
class _Rendered:
    tokens: Tokens
    question: str


def prepare(
    target: str,
    files: Sequence[Path],
    out: Path,
    settings: PrepareSettings,
    *,
    trust_remote_code: bool = False,
    show: Callable[[Any, Tokens], None] | None = None,
) -> dict[str, Any]:
    """Write the prepared folder `out` and return what its prepared.json says; one that holds just that already is left as it is.

    Args:
        show: called with the tokenizer and each chat that is kept.

    Raises:
        UserError: a file that is not chats, a target without chat template, nothing to learn from, `out` in use by
            anything else.
    """
    load_config(target, trust_remote_code)  # says so in words if there is no such target
    tokenizer = load_tokenizer(target, trust_remote_code)
    stop_ids = load_stop_ids(target, tokenizer, trust_remote_code)
    renderer = ChatRenderer(tokenizer, stop_ids, settings.max_length)
    if not stop_ids:
        raise UserError(f"{target} names no end-of-turn token", remedy="put eos_token_id into its generation_config.json")
    before = _prepared_before(out)
    num_chats = sum(1 for _ in _chats(files))  # what is no chat is found before any is rendered
    kept, skipped = _render_all(renderer, files, num_chats)
    if not kept:
        raise UserError("no chat is left to learn from", got=_counted(skipped), remedy="see the reasons; each chat needs an answer")
    splits = _split(kept, settings.validation)
    for sample in splits["train"] + splits["validation"] if show else []:
        assert show is not None
        show(tokenizer, sample)
    info = {
        "target": Path(target).resolve().name if Path(target).is_dir() else target,
        "max_length": settings.max_length,
        "stop_ids": list(stop_ids),
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "chat_template_hash": sha256_text(renderer.template),
        "corpus_hash": corpus_hash(splits["train"] + splits["validation"]),
        "sources": [{"file": path.name, "sha256": sha256_file(path)} for path in files],
        "chats_read": num_chats,
        **{name: _figures(splits[name], stop_ids, settings.max_length) for name in SPLITS},
        "skipped_by_reason": _counted(skipped),
        "skipped": skipped,
    }
    if before is not None:
        _require_same(out, before, info)
        console.print(f"{out} is finished: it was prepared from these chats and settings before", markup=False, highlight=False)
        return info
    with atomic_folder(out) as folder:
        write_prepared(folder, {name: splits[name] for name in SPLITS}, info)
    return info


def _prepared_before(out: Path) -> dict[str, Any] | None:
    """What an earlier run wrote to `out`. Raises UserError if `out` holds anything else, or could not be written."""
    if (out / "prepared.json").is_file():
        return read_prepared(out).info
    check_folder_free(out)
    return None


def _require_same(out: Path, before: dict[str, Any], info: dict[str, Any]) -> None:
    differing = [name for name, value in json.loads(json.dumps(info)).items() if before.get(name) != value]
    if differing:
        raise UserError(
            f"{out} was prepared from other chats or with other settings",
            got=f"other than now: {', '.join(differing)}",
            remedy="give another --out, or remove it first",
        )


def _chats(files: Sequence[Path]) -> Iterator[tuple[Path, Chat]]:
    return ((path, chat) for path in files for chat in read_chats(path))


def _render_all(renderer: ChatRenderer, files: Sequence[Path], num_chats: int) -> tuple[list[_Rendered], list[dict[str, str]]]:
    """One chat at a time: of a large corpus only the tokens are held."""
    kept: list[_Rendered] = []
    skipped: list[dict[str, str]] = []
    seen: set[str] = set()
    with Progress("rendering chats", num_chats, "chats") as progress:
        for path, chat in _chats(files):
            progress.advance(1)
            try:
                tokens = renderer.render(chat).packed()
            except SkippedChat as reason:
                skipped.append({"id": chat.id, "file": path.name, "reason": str(reason)})
                continue
            content = corpus_hash([tokens])
            if content in seen:
                skipped.append({"id": chat.id, "file": path.name, "reason": "duplicate of an earlier chat"})
                continue
            seen.add(content)
            kept.append(_Rendered(tokens, _question(chat)))
    return kept, skipped


def _question(chat: Chat) -> str:
    """What the first user says, for telling equal questions."""
    text = next((str(message.get("content")) for message in chat.messages if message["role"] == "user"), "")
    return " ".join(text.lower().split())


def _split(kept: list[_Rendered], validation: float) -> dict[str, list[Tokens]]:
    """Whole questions go to validation, in the order of their hashes, until its share is reached."""
    by_question: dict[str, list[Tokens]] = {}
    for item in kept:
        by_question.setdefault(item.question, []).append(item.tokens)
    wanted = max(1, round(validation * len(kept))) if validation and len(by_question) > 1 else 0
    held: set[str] = set()
    count = 0
    for question in sorted(by_question, key=lambda text: hashlib.sha256(text.encode()).digest())[:-1]:
        if count >= wanted:
            break
        held.add(question)
        count += len(by_question[question])
    return {
        "train": [item.tokens for item in kept if item.question not in held],
        "validation": [item.tokens for item in kept if item.question in held],
    }


def _figures(samples: list[Tokens], stop_ids: tuple[int, ...], max_length: int) -> dict[str, Any]:
    tokens = sum(len(sample.token_ids) for sample in samples)
    supervised = sum(sum(sample.loss_mask) for sample in samples)
    return {
        "chats": len(samples),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "supervised_ratio": supervised / max(1, tokens),
        "chats_at_max_length": sum(len(sample.token_ids) == max_length for sample in samples),
        "chats_ending_without_stop": sum(not _closed(sample, stop_ids) for sample in samples),
        "answers_cut_off": sum(sample.num_cut_off for sample in samples),
    }


def _closed(sample: Tokens, stop_ids: tuple[int, ...]) -> bool:
    """Whether the last supervised token is a stop token; not so where the answer was cut."""
    last = max(at for at, flag in enumerate(sample.loss_mask) if flag)
    return sample.token_ids[last] in stop_ids


def _counted(skipped: list[dict[str, str]]) -> dict[str, int]:
    return dict(Counter(item["reason"] for item in skipped).most_common())
