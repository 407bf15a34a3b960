"""Predicted acceptance: a walk over what the draft would have proposed at every row of the target's own answer.

The draft's steps are run once, in a batch, with the true tokens. Speculative decoding visits only some of the rows:
after a round that accepts n drafts the next one starts n + 1 rows on. So rounds start more often where the text is
hard, and a mean over all rows comes out too high; the walk visits the rows that decoding visits.

    answer  a0 a1 a2 a3 a4 a5      a0 is the prefill's token and belongs to no round
    row r reads a[r]; its step k proposes a[r+1+k]
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.engine.request import Round


def walk(answer: Sequence[int], hits_RK: Sequence[Sequence[bool]], num_draft_tokens: int, max_new_tokens: int) -> list[Round]:
    """The rounds that the engine makes of `answer`, the target's greedy answer with its stop token.

    Args:
        hits_RK: [len(answer) - 1, at least K]: whether step k at row r proposes the token that the answer has at
            r + 1 + k. What it says beyond the answer's end is not read.
        max_new_tokens: the engine's limit; near it a round proposes one token less than remain, since the target's
            own token comes behind the drafts.
    """
    rounds: list[Round] = []
    row = 0
    while row < len(answer) - 1:
        num_proposed = min(num_draft_tokens, max_new_tokens - (row + 1) - 1)
        judged = min(num_proposed, len(answer) - 1 - row)
        num_accepted = 0
        while num_accepted < judged and hits_RK[row][num_accepted]:
            num_accepted += 1
        tokens = tuple(answer[row + 1 : row + num_accepted + 2])
        if len(tokens) == num_accepted:  # the last draft accepted was the stop token: what it proposed behind is not judged
            num_proposed = num_accepted
        rounds.append(Round(num_proposed=num_proposed, num_accepted=num_accepted, num_emitted=len(tokens), tokens=tokens))
        row += len(tokens)
    return rounds
