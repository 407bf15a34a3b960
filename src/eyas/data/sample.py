"""Prompts written by the target itself: open a user turn with a few words and let the model go on.

The idea is that of Magpie (Xu et al. 2024); the openings spread the prompts over the domains. What comes out carries
no foreign licence and lies close to what the target knows how to answer.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from eyas.data.chats import Chat
from eyas.data.journal import Journal, journal_of
from eyas.data.overlap import ngrams
from eyas.data.render import chat_template_text
from eyas.progress import Progress
from eyas.targets.devices import dtype_name
from eyas.targets.generate import BatchSettings, check_room, generate_batch
from eyas.targets.target import Target

MIN_WORDS = 4
MAX_SHARED = 0.2  # share of a prompt's 4-grams that may occur in held-out prompts


@dataclass(frozen=True)
class SampleReport:
    """Where the sampled prompts went."""

    kept: int
    unfinished: int
    too_short: int
    duplicate: int
    like_heldout: int


def load_openings() -> list[tuple[str, str]]:
    """(domain, opening) pairs that come with the project."""
    text = resources.files("eyas.data").joinpath("prompts/openings.jsonl").read_text(encoding="utf-8")
    return [(item["domain"], item["opening"]) for item in map(json.loads, text.splitlines())]


def user_turn_prefix(tokenizer: Any) -> str:
    """The chat template's text up to the place where the user's words begin."""
    marker = "EYAS-USER-TEXT"
    chat_template_text(tokenizer)  # says so in words if there is none
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
    return str(rendered).split(marker)[0]


def sample_prompts(
    target: Target, count: int, out: Path, settings: BatchSettings, heldout: Sequence[str], part: tuple[int, int] = (0, 1)
) -> tuple[list[Chat], SampleReport]:
    """Sample until `count` prompts are kept. Resumes from `out`'s journal.

    Args:
        heldout: texts that no kept prompt may resemble.
        part: (index, number of parts) when several processes share the work: each draws other prompts.
    """
    forbidden = set().union(*(ngrams(text) for text in heldout)) if heldout else set()
    check_room(target, settings)
    job = {
        "target": target.name,
        "target_dtype": dtype_name(target.dtype),
        "tokenizer": target.tokenizer_hash,
        "chat_template": target.chat_template_hash,
        "seed": settings.seed,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_new_tokens": settings.max_new_tokens,
        "part": list(part),
    }
    drops = {"unfinished": 0, "too_short": 0, "duplicate": 0, "like_heldout": 0}
    seen: set[str] = set()
    kept: list[Chat] = []
    with Journal(journal_of(out), job) as journal, Progress("sampling prompts", count, "prompts") as progress:
        done = {entry["key"] for entry in journal.entries}
        fresh = _drawn(target, settings, done, part)
        for number, entry in enumerate(itertools.chain(journal.entries, _written(journal, fresh))):
            reason = _judge(entry, seen, forbidden)
            if reason is not None:
                drops[reason] += 1
                continue
            seen.add(_normal(entry["text"]))
            kept.append(Chat(f"sampled-{entry['key']}", ({"role": "user", "content": entry["text"]},), entry["domain"]))
            if number < len(done):
                progress.found(1)
            else:
                progress.advance(1)
            if len(kept) == count:
                break
    return kept, SampleReport(len(kept), **drops)


def _drawn(target: Target, settings: BatchSettings, done: set[str], part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """An endless stream of sampled prompts; the key of a prompt decides its opening and its random numbers."""
    prefix = user_turn_prefix(target.tokenizer)
    openings = load_openings()
    chosen: dict[str, tuple[str, str]] = {}

    def prompts() -> Iterator[tuple[str, list[int]]]:
        for number in itertools.count():
            key = f"{part[0]}-{number}"
            if key in done:
                continue
            chosen[key] = random.Random(f"{settings.seed}/opening/{key}").choice(openings)
            yield key, target.tokenizer.encode(prefix + chosen[key][1], add_special_tokens=False)

    for answer in generate_batch(target, prompts(), settings):
        domain, opening = chosen.pop(answer.key)
        text = (opening + target.tokenizer.decode(answer.tokens, skip_special_tokens=True)).strip()
        yield {"key": answer.key, "domain": domain, "text": text, "reason": answer.reason}


def _written(journal: Journal, entries: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        journal.append(entry)
        yield entry


def _judge(entry: dict[str, Any], seen: set[str], forbidden: set[tuple[str, ...]]) -> str | None:
    """Why a sampled prompt is dropped, or None."""
    if entry["reason"] != "stop":
        return "unfinished"
    if len(entry["text"].split()) < MIN_WORDS:
        return "too_short"
    if _normal(entry["text"]) in seen:
        return "duplicate"
    grams = ngrams(entry["text"])
    if grams and len(grams & forbidden) / len(grams) > MAX_SHARED:
        return "like_heldout"
    return None


def _normal(text: str) -> str:
    return " ".join(text.lower().split())
