"""What is put wrong in an engine, each at one place: the wrong things are those of public reports."""

from __future__ import annotations

from typing import Any

import torch

from eyas.engine.drafter import Proposal
from eyas.engine.engine import Engine
from eyas.engine.verify import Verdict

MAX_LENGTH = 1024  # as the server says; its caches hold more, so that a broken one does not run over


def accepts_everything(engine: Engine) -> None:
    """Every proposal is accepted, as with logits that are NaN."""

    def judge(turn: Any, proposal: Any, logits_BTV: torch.Tensor) -> Verdict:
        limit_B = torch.tensor(turn.limits)
        choice_BT = logits_BTV.argmax(-1)
        extra_B1 = choice_BT.gather(1, limit_B[:, None])
        tokens_BT = torch.cat([proposal.token_BK, extra_B1], dim=1).scatter(1, limit_B[:, None], extra_B1)
        return Verdict(limit_B, tokens_BT)

    engine._judge = judge  # type: ignore[method-assign]


def samples_too_hot(engine: Engine) -> None:
    """Temperatures are twice what was asked; greedy answers stay right."""
    verify = engine.runner.verify

    def hot(*args: Any) -> Any:
        logits_BTV, states_BTS = verify(*args)
        return logits_BTV * 0.5, states_BTS

    engine.runner.verify = hot  # type: ignore[method-assign]


def proposes_nonsense(engine: Engine) -> None:
    """The same token all the time, as a head that was never loaded may: the text stays right."""
    drafter = engine.drafter
    assert drafter is not None
    propose = drafter.propose

    def nonsense(*given: Any) -> Proposal:
        made = propose(*given)
        probs_BKW = None if made.probs_BKW is None else torch.zeros_like(made.probs_BKW).index_fill(-1, torch.tensor([7]), 1.0)
        return Proposal(torch.full_like(made.token_BK, 7), probs_BKW)

    drafter.propose = nonsense  # type: ignore[method-assign]


def forgets_nothing(engine: Engine) -> None:
    """The target's cache keeps refused proposals."""
    runner = engine.runner
    assert engine.drafter is not None
    for cache in (runner.cache, engine.drafter.cache):
        cache.grow(2 * MAX_LENGTH)  # what is never taken back needs room
    verify, forwarded = runner.verify, [0]

    def remember(ids_BT: torch.Tensor, *more: Any) -> Any:
        forwarded[0] = ids_BT.shape[1]
        return verify(ids_BT, *more)

    def keep(kept_B: torch.Tensor) -> None:
        runner.cache.advance(torch.full_like(kept_B, forwarded[0]))

    runner.verify, runner.keep = remember, keep  # type: ignore[method-assign]


def mixes_rows(engine: Engine) -> None:
    """In a batch of several, each row gets its neighbour's logits."""
    verify = engine.runner.verify

    def turned(*args: Any) -> Any:
        logits_BTV, states_BTS = verify(*args)
        return logits_BTV.roll(1, dims=0), states_BTS

    engine.runner.verify = turned  # type: ignore[method-assign]


def mixes_states(engine: Engine) -> None:
    """In a batch of several, each row's draft reads its neighbour's states: the text stays right."""
    verify = engine.runner.verify

    def turned(*args: Any) -> Any:
        logits_BTV, states_BTS = verify(*args)
        return logits_BTV, None if states_BTS is None else states_BTS.roll(1, dims=0)

    engine.runner.verify = turned  # type: ignore[method-assign]
