"""Word 4-grams: counted over distinct held-out 4-grams, blind to case and punctuation."""

import pytest

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
