"""What a large corpus takes: bytes a token, not a Python number a token; and of many chats only some are held."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest
import torch

from eyas.capture.corpus import corpus_of
from eyas.capture.plan import Corpus, Text
from eyas.data.prepared import corpus_hash, read_prepared, write_prepared
from eyas.data.render import Tokens

CHATS, LENGTH, VOCAB = 200, 2000, 50_000


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    ids_NT = torch.randint(1000, VOCAB, (CHATS, LENGTH), generator=torch.Generator().manual_seed(0))
    samples = [Tokens(ids_T.tolist(), [0, *[1] * (LENGTH - 1)], f"chat-{number}").packed() for number, ids_T in enumerate(ids_NT)]
    info = {"tokenizer_hash": "t", "chat_template_hash": "c", "corpus_hash": corpus_hash(samples)}
    write_prepared(folder, {"train": samples[:-10], "validation": samples[-10:]}, info)
    return folder


def bytes_a_token(work) -> tuple[float, float]:
    """(held afterwards, held at most) by `work`, whose value is kept."""
    tracemalloc.start()
    try:
        kept = work()
        held, most = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return held / (CHATS * LENGTH), most / (CHATS * LENGTH)


def test_a_prepared_corpus_is_held_in_few_bytes_a_token(prepared: Path):
    held, most = bytes_a_token(lambda: corpus_of(read_prepared(prepared)))
    assert held < 6, "five bytes a token, and a few hundred a chat"
    assert most < 8


@pytest.mark.parametrize("work", [Corpus.hash, lambda corpus: corpus.token_counts(VOCAB), lambda corpus: corpus.check(VOCAB, LENGTH)])
def test_going_over_it_takes_one_text_at_a_time(prepared: Path, work):
    corpus = corpus_of(read_prepared(prepared))
    assert bytes_a_token(lambda: work(corpus))[1] < 2


def test_what_is_written_is_what_is_read(prepared: Path):
    found = read_prepared(prepared)
    assert corpus_hash([*found.train, *found.validation]) == found.info["corpus_hash"]
    assert list(found.train[3].loss_mask) == [0, *[1] * (LENGTH - 1)]
    assert [sample.id for sample in found.validation] == [f"chat-{number}" for number in range(CHATS - 10, CHATS)]


def test_a_corpus_has_one_hash_however_its_numbers_are_kept():
    """An unfinished dump is gone on with by its corpus' hash, so the hash is not to change."""
    plain = (Text("a", (1, 2, 300), (False, True, True)), Text("b", (4,), (True,)))
    packed = tuple(
        Text(text.id, made.token_ids, made.loss_mask)
        for text in plain
        for made in [Tokens(list(text.token_ids), list(text.loss_mask), text.id).packed()]
    )
    wanted = hashlib.sha256(repr([("a", (1, 2, 300), (False, True, True)), ("b", (4,), (True,))]).encode()).hexdigest()
    for texts in (plain, packed):
        assert Corpus(texts, 2, "c", None, "t").hash() == wanted
