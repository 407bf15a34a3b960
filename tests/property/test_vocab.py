"""The draft vocabulary's map, for any counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.data.vocab import VocabMap, build_vocab_map
from eyas.errors import UserError


@st.composite
def wishes(draw):
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(any))
    required = draw(st.sets(st.integers(0, len(counts) - 1), max_size=min(4, len(counts))))
    return torch.tensor(counts), draw(st.integers(max(1, len(required)), len(counts))), required


@given(wishes())
def test_the_map_is_a_bijection_onto_the_most_frequent_tokens(wish):
    counts, size, required = wish
    made = build_vocab_map(counts, size, required)
    ids = (torch.arange(size) + made.d2t).tolist()
    assert ids == sorted(set(ids))
    assert made.t2d.nonzero()[:, 0].tolist() == ids
    assert required <= set(ids)
    left_out = [int(counts[token]) for token in range(len(counts)) if token not in ids]
    free = [int(counts[token]) for token in ids if token not in required]
    assert not free or not left_out or max(left_out) <= min(free)
    assert made.coverage == pytest.approx(sum(int(counts[token]) for token in ids) / int(counts.sum()))
    assert made.kind == ("full" if size == len(counts) else "offset")


@given(wishes())
def test_equal_wishes_give_equal_hashes_and_another_token_another_hash(wish):
    counts, size, required = wish
    made = build_vocab_map(counts, size, required)
    assert made.hash() == build_vocab_map(counts.clone(), size, required).hash()
    if size < len(counts):
        outside = int((~made.t2d).nonzero()[0])
        other = build_vocab_map(counts, size, {outside} | required) if len(required) < size else None
        assert other is None or other.hash() != made.hash()


def test_ties_go_to_the_lower_id():
    assert build_vocab_map(torch.tensor([1, 2, 2, 2, 0]), 2).target_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("counts", "size", "required", "message"),
    [
        ([1, 1], 3, (), "does not fit"),
        ([1, 1], 0, (), "does not fit"),
        ([1, 1, 1], 1, (0, 1), "does not fit"),
        ([1, 1], 1, (2,), "outside"),
        ([0, 0], 1, (), "must count something"),
        ([3, -1], 1, (), "negative"),
    ],
)
def test_impossible_wishes_are_errors(counts, size, required, message):
    with pytest.raises(UserError, match=message):
        build_vocab_map(torch.tensor(counts), size, required)


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        ([1, 3], [0, 1, 0, 1], "strictly increasing"),  # ids where offsets belong: 1, 4
        ([2, 0], [1, 0, 1, 0], "strictly increasing"),
        ([0, 0], [1, 0, 1, 0], "name other tokens"),
        ([-1, 0], [1, 1, 0, 0], "strictly increasing"),
        ([], [0, 0], "strictly increasing"),
    ],
)
def test_a_map_that_contradicts_itself_is_an_error(d2t, t2d, message):
    with pytest.raises(UserError, match=message):
        VocabMap(torch.tensor(d2t, dtype=torch.long), torch.tensor(t2d, dtype=torch.bool), 1.0)


def test_a_map_of_another_type_is_an_error():
    with pytest.raises(UserError, match="wrong type"):
        VocabMap(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([True, True]), 1.0)
