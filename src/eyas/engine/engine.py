"""Speculative decoding of a batch of requests, round by round; without a draft, plain decoding by the same code.

    step:   admit waiting requests into free slots, run their prompts, emit their first tokens         or
            propose   K tokens a row by the draft
            verify    all of them in one forward of the target
            keep      the accepted ones and one more; forget the rest; note the new states for the draft

Rows of a batch progress unequally: each slot has a length of its own in both caches.

Legend: B rows (busy slots), K proposals, T = K + 1, V target vocabulary, S = n·H for n taps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from eyas.draft.model import Eagle3Draft
from eyas.engine.drafter import Drafter, Proposal
from eyas.engine.request import Output, Request, Round, SamplingParams, check_num_draft_tokens
from eyas.engine.sampling import SamplingBatch, draw, greedy, probabilities
from eyas.engine.target_runner import TargetRunner
from eyas.engine.verify import Verdict, verify_greedy, verify_sampled
from eyas.errors import UserError
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target

_CAPACITY_STEP = 256  # caches grow by whole steps, so that they seldom grow


@dataclass(frozen=True)
class _Turn:
    """Who takes part in a round. `slots` is None if all do; `limits` holds how many proposals each row can use.

    `uniform_BN` [B, 2K + 1] holds K numbers to draft with, K to accept with and one for the extra token: as many every
    round, whatever the limits, so that a request's numbers do not depend on others. None if every row is greedy.
    """

    requests: list[Request]
    slots: list[int] | None
    limits: list[int]
    sampling: SamplingBatch
    uniform_BN: torch.Tensor | None


class Engine:
    """Use it as a context manager, or call `close`: it keeps hooks on the target while it lives.

    Args:
        draft: None for plain decoding.
        taps: the states the draft reads, in its order; ignored without a draft.
        max_batch: requests decoded together.
        max_length: longest prompt + answer; None means what the target's positions allow.

    Raises:
        UserError: the taps do not fit the target or the draft.
    """

    def __init__(
        self,
        target: Target,
        draft: Eagle3Draft | None = None,
        taps: Sequence[Tap] = (),
        num_draft_tokens: int = 3,
        max_batch: int = 1,
        max_length: int | None = None,
    ) -> None:
        _check_parts(target, draft, taps, num_draft_tokens, max_batch)
        self.target = target
        self.num_draft_tokens = num_draft_tokens if draft is not None else 0
        self.max_length = max_length or target.max_positions
        self.runner = TargetRunner(target, taps if draft is not None else (), max_batch, _CAPACITY_STEP, self.max_length)
        self.drafter = Drafter(draft, max_batch, _CAPACITY_STEP, num_draft_tokens, target.device) if draft is not None else None
        self._slots: list[Request | None] = [None] * max_batch
        self._waiting: deque[Request] = deque()

    def close(self) -> None:
        self.runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- what callers use --------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, advance: Callable[[int], None] = lambda num_finished: None
    ) -> list[Output]:
        """Answer all prompts, `max_batch` at a time; a finished one makes room at once. Outputs in the order given.

        Args:
            advance: told after every step how many more requests are finished, for a progress bar.
        """
        requests: list[Request] = []
        try:
            requests.extend(self.add(prompt, params, index) for index, prompt in enumerate(prompts))
            num_finished = 0
            while num_finished < len(requests):
                self.step()
                before, num_finished = num_finished, sum(request.finish_reason is not None for request in requests)
                advance(num_finished - before)
        finally:
            for request in requests:  # after an error nothing of this call stays behind
                self.abort(request)
        return [request.output() for request in requests]

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Round]:
        """Answer one prompt; the first item is the prefill's token (`is_prefill`), then one item a round."""
        return self.run(self.add(prompt, params))

    def run(self, request: Request) -> Iterator[Round]:
        """Step until `request` is finished, and give what it emits; its `output()` says the rest."""
        try:
            while request.finish_reason is None:
                yield from (made for owner, made in self.step() if owner is request)
        finally:
            self.abort(request)

    def add(self, prompt: Sequence[int], params: SamplingParams, index: int = 0) -> Request:
        """Queue a request; `index` tells the random numbers of requests with one seed apart.

        Raises UserError for an empty prompt, ids outside the vocabulary, or a prompt + answer longer than `max_length`.
        """
        if not prompt:
            raise UserError("the prompt has no tokens", allowed="at least one")
        if min(prompt) < 0 or max(prompt) >= self.target.vocab_size:
            raise UserError(
                "the prompt has ids outside the target's vocabulary",
                got=f"ids from {min(prompt)} to {max(prompt)}",
                allowed=f"0 to {self.target.vocab_size - 1}",
                remedy="use the tokenizer that belongs to the target",
            )
        if len(prompt) + params.max_new_tokens > self.max_length:
            raise UserError(
                "prompt and answer are longer than the target's positions",
                got=f"{len(prompt)} + {params.max_new_tokens} tokens",
                allowed=self.max_length,
                remedy="shorten the prompt or lower --max-new-tokens",
            )
        request = Request.of(list(prompt), params, self.target.stop_ids, index)
        self._waiting.append(request)
        return request

    def abort(self, request: Request) -> None:
        """Forget a request, finished or not; its slot is free again."""
        self._slots = [None if held is request else held for held in self._slots]
        if request in self._waiting:
            self._waiting.remove(request)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or any(request is not None for request in self._slots)

    # -- one step ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, Round]]:
        """Prefill what waits if there is room, else run one round for every busy slot. Says what was emitted."""
        started = time.perf_counter()
        arrivals = self._admit()
        if arrivals:
            made = self._prefill(arrivals)
        else:
            made = self._round(self._turn())
        seconds = time.perf_counter() - started
        for request, what in made:
            if what.is_prefill:
                request.prefill_seconds = seconds
            else:
                request.decode_seconds += seconds
        self._slots = [request if request is not None and request.finish_reason is None else None for request in self._slots]
        return made

    def _round(self, turn: _Turn) -> list[tuple[Request, Round]]:
        proposal = self._propose(turn)
        last_B1 = torch.tensor([[request.tokens[-1]] for request in turn.requests], device=self.target.device)
        logits_BTV, states_BTS = self.runner.verify(torch.cat([last_B1, proposal.token_BK], dim=1), turn.slots)
        verdict = self._judge(turn, proposal, logits_BTV)
        self.runner.keep(verdict.num_accepted_B + 1)

        num_kept = [count + 1 for count in verdict.num_accepted_B.tolist()]
        if self.drafter is not None and states_BTS is not None:
            self.drafter.settle(verdict.token_BT, states_BTS, num_kept, turn.slots)
        rows = zip(turn.requests, verdict.token_BT.tolist(), num_kept, turn.limits, strict=True)
        return [(request, request.take_round(tokens[:kept], limit)) for request, tokens, kept, limit in rows]

    def _propose(self, turn: _Turn) -> Proposal:
        num_proposals = max(turn.limits)
        if self.drafter is not None and num_proposals > 0:
            return self.drafter.propose(num_proposals, turn.sampling, turn.uniform_BN, turn.slots)
        nothing_BK = torch.empty(len(turn.requests), 0, dtype=torch.long, device=self.target.device)
        return Proposal(nothing_BK, torch.empty(*nothing_BK.shape, self.target.vocab_size, device=self.target.device))

    def _judge(self, turn: _Turn, proposal: Proposal, logits_BTV: torch.Tensor) -> Verdict:
        """Apply the accept rule, each row to its own number of proposals; what lies behind them is padding."""
        limit_B = torch.tensor(turn.limits, device=logits_BTV.device)
        valid_BT = None
        if min(turn.limits) < max(turn.limits):
            valid_BT = torch.arange(logits_BTV.shape[1], device=logits_BTV.device) <= limit_B[:, None]
        if turn.uniform_BN is None:
            return verify_greedy(greedy(logits_BTV, "target", valid_BT), proposal.token_BK, limit_B)
        assert proposal.probs_BKW is not None, "a draft that samples gives its probabilities"
        first = self.num_draft_tokens
        used_BT = torch.cat([turn.uniform_BN[:, first : first + proposal.token_BK.shape[1]], turn.uniform_BN[:, -1:]], dim=1)
        target_probs_BTV = probabilities(logits_BTV, turn.sampling, "target", valid_BT)
        return verify_sampled(target_probs_BTV, proposal.probs_BKW, proposal.token_BK, limit_B, used_BT)

    def _turn(self) -> _Turn:
        busy = [slot for slot, request in enumerate(self._slots) if request is not None]
        requests = [request for request in self._slots if request is not None]
        sampling = SamplingBatch.of([request.params for request in requests], self.target.device)
        return _Turn(
            requests=requests,
            slots=None if len(busy) == len(self._slots) else busy,
            limits=[min(self.num_draft_tokens, request.num_remaining - 1) for request in requests],
            sampling=sampling,
            uniform_BN=None if sampling.all_greedy else self._uniform(requests, 2 * self.num_draft_tokens + 1),
        )

    def _uniform(self, requests: list[Request], count: int) -> torch.Tensor:
        """Each request has its own generator, so what it draws does not depend on its neighbours in the batch."""
        drawn = [torch.rand(count, generator=request.generator, dtype=torch.float64) for request in requests]
        return torch.stack(drawn).to(self.target.device)

    # -- prefill -----------------------------------------------------------------------------------------------

    def _admit(self) -> list[int]:
        """Move waiting requests into free slots, first come first served; returns those slots."""
        taken = []
        for slot, held in enumerate(self._slots):
            if held is None and self._waiting:
                self._slots[slot] = self._waiting.popleft()
                taken.append(slot)
        needed = max((len(held.prompt) + held.params.max_new_tokens + self.num_draft_tokens for held in self._slots if held), default=0)
        if needed > self.runner.cache.capacity:
            capacity = -(-needed // _CAPACITY_STEP) * _CAPACITY_STEP
            self.runner.cache.grow(capacity)
            if self.drafter is not None:
                self.drafter.cache.grow(capacity)
        return taken

    def _prefill(self, arrivals: list[int]) -> list[tuple[Request, Round]]:
        requests = [request for slot in arrivals if (request := self._slots[slot]) is not None]
        slots = None if len(arrivals) == len(self._slots) else arrivals
        prompts = [request.prompt for request in requests]
        logits_B1V, states_BTS = self.runner.prefill(prompts, slots)
        sampling = SamplingBatch.of([request.params for request in requests], self.target.device)
        if sampling.all_greedy:
            first_B = greedy(logits_B1V, "target")[:, 0]
        else:
            first_B = draw(probabilities(logits_B1V, sampling, "target")[:, 0], self._uniform(requests, 1)[:, 0])
        if self.drafter is not None and states_BTS is not None:
            self.drafter.prefill(prompts, states_BTS, first_B, slots)
        return [(request, request.take_first(token)) for request, token in zip(requests, first_B.tolist(), strict=True)]


def _check_parts(target: Target, draft: Eagle3Draft | None, taps: Sequence[Tap], num_draft_tokens: int, max_batch: int) -> None:
    if max_batch < 1:
        raise UserError("max_batch is out of range", got=max_batch, allowed="1 or more")
    if draft is None:
        return
    check_num_draft_tokens(num_draft_tokens)
    if len(taps) != draft.config.num_taps:
        raise UserError("the draft reads another number of states", got=format_taps(tuple(taps)), allowed=f"{draft.config.num_taps} taps")
    for name, drafts, targets in (
        ("hidden size", draft.config.target_hidden_size, target.hidden_size),
        ("vocabulary size", draft.config.vocab_size, target.vocab_size),
    ):
        if drafts != targets:
            raise UserError(
                f"the draft was made for a target of another {name}",
                got=targets,
                allowed=drafts,
                remedy="use the target that the draft was trained for",
            )
