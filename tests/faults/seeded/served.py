"""Faults of kinds O, P, Q and R: what a server does and reports. Bugs of an engine are put into our own while it is examined."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from eyas.engine import engine as engine_module
from eyas.engine.target_runner import TargetRunner
from eyas.engine.verify import Verdict
from seeded.figures import drifting_log, saved, sglang_metrics, vllm_metrics
from seeded.registry import FILES, LIVE, add, fault
from seeded.sets import Set

# -- R: figures --------------------------------------------------------------------------------------------------


def reported(name: str, text: str, engine: str | None = None) -> Callable[[Set], Set]:
    """Metrics alone, without draft or target."""
    return lambda s: s.but(metrics=saved(s, name, text), engine=engine, given=())


def report_json(**values: Any) -> str:
    return json.dumps(values)


add("metric-impossible", "more accepted than proposed", reported("m.txt", vllm_metrics(100, 300, 420, (160, 140, 120))), depths=FILES)
add("metric-impossible", "positions do not add up", reported("m.txt", vllm_metrics(100, 300, 144, (76, 44, 90))), depths=FILES)
add("metric-impossible", "a rate of 1.42", reported("m.json", report_json(acceptance_rate=1.42, num_speculative_tokens=3)), depths=FILES)
add(
    "metric-impossible",
    "a length of 5.3 with three proposals",
    reported("m.txt", sglang_metrics(5.3, 0.9, 4), "sglang==0.5.20"),
    depths=FILES,
)
add("metric-impossible", "length and rate do not fit", reported("m.txt", sglang_metrics(2.4, 0.9, 4), "sglang==0.5.20"), depths=FILES)
add(
    "metric-definition",
    "a length without the target's token",
    reported("m.json", report_json(num_drafts=100, num_accepted_tokens=144, num_draft_tokens=300, mean_acceptance_length=1.44)),
    depths=FILES,
)
BENCHMARK = {
    "spec_decode_acceptance_rate": 48.0,
    "spec_decode_acceptance_length": 2.44,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 3000,
    "spec_decode_accepted_tokens": 1440,
    "spec_decode_per_position_acceptance_rates": [0.76, 0.44, 0.24],
}
TABLE = """---------------Speculative Decoding---------------
Acceptance rate (%):                     48.00
Acceptance length:                       2.44
Drafts:                                  1000
Draft tokens:                            3000
Accepted tokens:                         1440
Per-position acceptance (%):
  Position 0:                            76.00
  Position 1:                            44.00
  Position 2:                            24.00
"""
ITERATION = {"specDecodingStats": {"numDraftTokens": 300, "numAcceptedTokens": 420, "acceptanceLength": 2.4}}

add(
    "metric-definition",
    "a benchmark's length without the target's token",
    reported("b.json", report_json(**BENCHMARK | {"spec_decode_acceptance_length": 1.44})),
    depths=FILES,
)
add("metric-definition", "a benchmark's table with a token too many", reported("b.txt", TABLE.replace("2.44", "3.44")), depths=FILES)
add("metric-impossible", "more accepted than proposed, in other words", reported("t.json", report_json(**ITERATION)), depths=FILES)
add(
    "metric-impossible",
    "a rate that is not accepted of proposed",
    reported("b.json", report_json(**BENCHMARK | {"spec_decode_acceptance_rate": 88.0})),
    depths=FILES,
)
add(
    "metric-definition",
    "a length with one token too many",
    reported("m.json", report_json(num_drafts=100, num_accepted_tokens=144, num_draft_tokens=300, acceptance_length=3.44)),
    depths=FILES,
)
add(
    "metric-definition",
    "SGLang's count of tokens taken for K",
    reported("m.json", report_json(accept_length=2.44, accept_rate=0.48, num_speculative_tokens=4)),
    depths=FILES,
)
add(
    "served-below",
    "the server accepts a tenth",
    lambda s: s.but(metrics=saved(s, "m.txt", vllm_metrics(4000, 12000, 280, (200, 60, 20))), given=("target", "draft", "data")),
    "llama",
    "qwen3",
    depths=LIVE,
)

# -- O: drift ----------------------------------------------------------------------------------------------------


add(
    "drift", "the length falls from 2.6 to 1.3", lambda s: s.but(log=saved(s, "server.log", drifting_log(2.6, 1.3)), given=()), depths=FILES
)
add(
    "drift", "the length falls from 2.4 to 2.0", lambda s: s.but(log=saved(s, "server.log", drifting_log(2.4, 2.0)), given=()), depths=FILES
)


# -- N, G, P, E, O, S: what figures and logs say of the server itself ------------------------------------------------


def loaded_log(length: Callable[[int, int, int], float], requests: Callable[[int], int], tokens: Callable[[int], int]) -> str:
    """SGLang's lines: acceptance length by number of the line, requests at once, and tokens a request."""
    lines = []
    for place in range(60):
        running, each = requests(place), tokens(place)
        told = length(place, running, each) + 0.05 * ((place * 7) % 5 - 2)
        lines.append(
            f"[2026-07-01 10:{place:02d}:00] Decode batch, #running-req: {running}, #token: {running * each}, accept len: {told:.2f}"
        )
    return "\n".join(lines) + "\n"


def vllm_log(length: Callable[[int], float], hits: Callable[[int], float]) -> str:
    lines = []
    for place in range(60):
        lines.append(f"INFO Engine 000: Running: 4 reqs, Waiting: 0 reqs, Prefix cache hit rate: {hits(place):.1f}%")
        lines.append(
            f"INFO SpecDecoding metrics: Mean acceptance length: {length(place) + 0.05 * ((place * 7) % 5 - 2):.2f}, Accepted: 90 tokens"
        )
    return "\n".join(lines) + "\n"


def updated_log(before: float, after: float) -> str:
    first, second = (loaded_log(lambda *_, level=level: level, lambda place: 4, lambda place: 600) for level in (before, after))
    return first + '[2026-07-01 11:00:00] "POST /update_weights_from_distributed HTTP/1.1" 200 OK\n' + second


def logged(text: str) -> Callable[[Set], Set]:
    return lambda s: s.but(log=saved(s, "server.log", text), given=())


def waves(place: int) -> int:
    return (1, 4, 16, 32)[place % 4]


add("accepts-everything", "every round is full", reported("m.txt", vllm_metrics(500, 1500, 1500, (500, 500, 500))), depths=FILES)
add("accepts-nothing", "no proposal is ever taken", reported("m.txt", vllm_metrics(500, 1500, 0, (0, 0, 0))), depths=FILES)
add("accepts-nothing", "SGLang stays at one token a round", reported("m.txt", sglang_metrics(1.0, 0.0, 4), "sglang==0.5.20"), depths=FILES)
add(
    "batch-variant",
    "acceptance falls with requests at once",
    logged(loaded_log(lambda place, running, each: 2.5 - 0.02 * running, waves, lambda place: 700)),
    depths=FILES,
)
add(
    "rope-range",
    "acceptance falls with the length of texts",
    logged(loaded_log(lambda place, running, each: 2.4 - 0.6 * (each > 4000), lambda place: 8, lambda place: 500 if place % 3 else 8000)),
    depths=FILES,
)
add(
    "cache-variant",
    "acceptance falls with hits of the prefix cache",
    logged(vllm_log(lambda place: 2.4 - 0.5 * (place % 2), lambda place: 5.0 + 60.0 * (place % 2))),
    depths=FILES,
)
add("draft-stale", "acceptance falls behind an update of the weights", logged(updated_log(2.5, 1.6)), depths=FILES)

# -- O, P, Q: bugs of an engine ------------------------------------------------------------------------------------


def accepts_everything() -> AbstractContextManager[object]:
    """Every proposal is accepted, as with logits that are NaN."""

    def judge(choice_BT: torch.Tensor, token_BK: torch.Tensor, limit_B: torch.Tensor) -> Verdict:
        extra_B1 = choice_BT.gather(1, limit_B[:, None])
        tokens = torch.cat([token_BK, extra_B1], dim=1).scatter(1, limit_B[:, None], extra_B1)
        return Verdict(limit_B, tokens)

    return mock.patch.object(engine_module, "verify_greedy", judge)


def forgets_nothing() -> AbstractContextManager[object]:
    """The target's cache keeps refused proposals."""
    verify = TargetRunner.verify

    def remember(self: TargetRunner, ids_BT: torch.Tensor, *more: Any) -> Any:
        self.num_forwarded = ids_BT.shape[1]  # type: ignore[attr-defined]
        return verify(self, ids_BT, *more)

    def keep(self: TargetRunner, kept_B: torch.Tensor) -> None:
        self.cache.advance(torch.full_like(kept_B, self.num_forwarded))  # type: ignore[attr-defined]

    return mock.patch.multiple(TargetRunner, verify=remember, keep=keep)


def mixes_rows() -> AbstractContextManager[object]:
    """In a batch of several, each row gets its neighbour's logits."""
    verify = TargetRunner.verify

    def turned(self: TargetRunner, *args: Any, **more: Any) -> Any:
        logits_BTV, states_BTS = verify(self, *args, **more)
        return logits_BTV.roll(1, dims=0), states_BTS

    return mock.patch.object(TargetRunner, "verify", turned)


EMBEDDED = ("target", "draft", "data")


def embedded(s: Set) -> Set:
    return s.but(engine="embedded", given=EMBEDDED)


fault("lossy", "every proposal is accepted", "llama", "qwen3", depths=LIVE, patch=accepts_everything)(embedded)
fault("cache-variant", "refused proposals stay in the cache", "llama", depths=LIVE, patch=forgets_nothing)(embedded)
fault("batch-variant", "rows of a batch are mixed up", "llama", depths=LIVE, patch=mixes_rows)(embedded)
