"""The draft vocabulary: which of the target's tokens a draft can propose, and how its ids become the target's.

    target id = draft id + d2t[draft id]          t2d[target id] is True where a draft id exists

Draft ids follow target ids in order, so that the map is one strictly increasing list. Shapes: V target vocabulary,
Vd draft vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from eyas.errors import UserError
from eyas.files import sha256_text


@dataclass(frozen=True)
class VocabMap:
    """`coverage` is the share of the counted tokens that the draft can propose.

    Raises UserError while constructing if d2t and t2d do not describe the same tokens.
    """

    d2t: torch.Tensor  # int64 [Vd], offsets
    t2d: torch.Tensor  # bool [V]
    coverage: float

    def __post_init__(self) -> None:
        if self.d2t.dtype != torch.int64 or self.d2t.ndim != 1 or self.t2d.dtype != torch.bool or self.t2d.ndim != 1:
            raise UserError(
                "a draft-vocabulary map has the wrong type",
                got=f"d2t {self.d2t.dtype} {list(self.d2t.shape)}, t2d {self.t2d.dtype} {list(self.t2d.shape)}",
                allowed="d2t int64 [draft vocabulary], t2d bool [target vocabulary]",
            )
        ids = self.target_ids
        if len(ids) == 0 or bool((ids.diff() <= 0).any()) or int(ids[0]) < 0 or int(ids[-1]) >= len(self.t2d):
            raise UserError(
                "d2t does not give strictly increasing ids of the target's vocabulary",
                got=f"ids from {ids.min().item() if len(ids) else None} to {ids.max().item() if len(ids) else None}",
                allowed=f"offsets: target id = draft id + d2t[draft id], below {len(self.t2d)}",
                remedy="if the map holds target ids and not offsets, subtract 0, 1, 2, ... from it",
            )
        if not torch.equal(self.t2d.nonzero()[:, 0], ids):
            raise UserError(
                "d2t and t2d name other tokens",
                got=f"{int(self.t2d.sum())} in t2d, {len(ids)} in d2t",
                remedy="they must come from one map",
            )

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's ids [Vd] in the order of the draft's."""
        return self.d2t + torch.arange(len(self.d2t))

    @property
    def kind(self) -> Literal["offset", "full"]:
        return "full" if len(self.d2t) == len(self.t2d) else "offset"

    def hash(self) -> str:
        """What the wiring states as d2t_hash: equal iff draft ids mean the same target ids."""
        return sha256_text(json.dumps(self.d2t.tolist()))


def build_vocab_map(counts: torch.Tensor, draft_vocab_size: int, required_ids: Iterable[int] = ()) -> VocabMap:
    """The `draft_vocab_size` most frequent tokens; of equally frequent ones the lower id.

    Args:
        counts: how often each token [V] occurs in the answers to learn from.
        required_ids: taken in any case: a draft that cannot propose the end of a turn never ends one.

    Raises UserError: a size that does not fit, counts that are empty or negative, an id outside the vocabulary.
    """
    vocab_size, required = len(counts), sorted(set(required_ids))
    if not max(1, len(required)) <= draft_vocab_size <= vocab_size:
        raise UserError("the draft vocabulary does not fit", got=draft_vocab_size, allowed=f"{max(1, len(required))} to {vocab_size}")
    if required and not (required[0] >= 0 and required[-1] < vocab_size):
        raise UserError("a required token lies outside the target's vocabulary", got=required, allowed=f"0 to {vocab_size - 1}")
    if bool((counts < 0).any()) or int(counts.sum()) == 0:
        raise UserError("token counts must not be negative and must count something", got=f"sum {int(counts.sum())}")
    rank = counts.to(torch.int64).clone()
    rank[required] = int(rank.max()) + 1
    chosen = rank.sort(descending=True, stable=True).indices[:draft_vocab_size].sort().values
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[chosen] = True
    covered = int(counts[chosen].sum()) / int(counts.sum())
    return VocabMap(chosen - torch.arange(draft_vocab_size), t2d, covered)
