"""Word 4-grams: counted over distinct held-out 4-grams, blind to case and punctuation."""

from importlib import resources

import pytest

from eyas.data.chats import read_chats
from eyas.data.overlap import ngrams, overlap


def test_ngrams_ignore_case_and_punctuation():
    assert ngrams("One, two: THREE four five") == {("one", "two", "three", "four"), ("two", "three", "four", "five")}
    assert ngrams("only three words") == set()


@pytest.mark.parametrize(
    ("training", "share"),
    [(["nothing of it here at all"], 0.0), (["x a b c d y"], 0.5), (["a b c d", "b c d e"], 1.0), (["a b c", "d e"], 0.0), ([], 0.0)],
)
def test_share_of_heldout_ngrams(training, share):
    assert overlap(["a b c d e", "A B C D!"], training) == share


def test_texts_too_short_to_compare_overlap_nothing():
    assert overlap(["a b"], ["a b"]) == 0.0
    assert overlap([], ["a b c d"]) == 0.0


def built_in(name):
    with resources.as_file(resources.files("eyas.data").joinpath(f"prompts/{name}.jsonl")) as path:
        return list(read_chats(path))


@pytest.mark.parametrize("name", ["train", "answered"])
def test_what_comes_along_to_train_on_is_apart_from_what_is_held_out(name):
    heldout = ["\n".join(message["content"] for message in chat.messages) for chat in built_in("heldout")]
    training = ["\n".join(message["content"] for message in chat.messages) for chat in built_in(name)]
    assert len(training) >= 300
    assert overlap(heldout, training) < 0.05


def test_every_answered_chat_ends_with_an_answer():
    chats = built_in("answered")
    assert all(chat.messages[-1]["role"] == "assistant" and chat.messages[-1]["content"].strip() for chat in chats)
    assert sum(chat.id.startswith("sampled-") for chat in chats) >= 300, "prompts that the target wrote are among them"
