"""What a server counted between two moments, from its Prometheus page.

Counters are added up over the engine processes behind a server. SGLang's figures of speculation are gauges over its last
log interval, so no difference can be made of them; its requests count for themselves (`protocol.Reply.rounds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from eyas.doctor.server_figures import ServerFigures
from eyas.errors import UserError

_SPEC = "vllm:spec_decode_num_"
_WAIT_SECONDS, _STEP_SECONDS = 5.0, 0.1
_OTHERS = 0.02  # share of tokens that others may have decoded meanwhile
FELL_BACK = "the server's counters fell back while it was asked: it was restarted, or several servers answer at this address in turn"


@dataclass(frozen=True)
class Counters:
    """`generated`: tokens of all answers. `running`: requests in work. `positions`: accepted drafts by position."""

    rounds: float = 0.0
    proposed: float = 0.0
    accepted: float = 0.0
    positions: tuple[float, ...] = ()
    generated: float = 0.0
    running: float = 0.0
    cache_hits: float = 0.0
    speculative: bool = False


def counters_in(text: str, model: str | None = None) -> Counters:
    """Raises UserError for a page that is no Prometheus text. Other models' samples are left out."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text if text.endswith("\n") else text + "\n"):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if model is not None and sample.labels.get("model_name", model) != model:
                    continue
                if name == f"{_SPEC}accepted_tokens_per_pos":
                    place = int(sample.labels["position"])
                    positions[place] = positions.get(place, 0.0) + sample.value
                elif name.startswith("vllm:"):
                    totals[name] = totals.get(name, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise UserError("the server's /metrics is no Prometheus text", got=str(error)[:160]) from error
    return Counters(
        rounds=totals.get(f"{_SPEC}drafts", 0.0),
        proposed=totals.get(f"{_SPEC}draft_tokens", 0.0),
        accepted=totals.get(f"{_SPEC}accepted_tokens", 0.0),
        positions=tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1)),
        generated=totals.get("vllm:generation_tokens", 0.0),
        running=totals.get("vllm:num_requests_running", 0.0),
        cache_hits=totals.get("vllm:prefix_cache_hits", 0.0),
        speculative=f"{_SPEC}drafts" in totals,
    )


def settled(scrape: Callable[[], Counters], before: Counters, num_tokens: int) -> Counters:
    """The counters once they hold the `num_tokens` that were just received: a server counts a moment after it answers."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        now = scrape()
        if now.generated - before.generated >= num_tokens or time.monotonic() > deadline:
            return now
        time.sleep(_STEP_SECONDS)


def fell_back(before: Counters, after: Counters) -> bool:
    return after.rounds < before.rounds or after.generated < before.generated or len(after.positions) < len(before.positions)


def between(before: Counters, after: Counters, num_tokens: int, where: str) -> ServerFigures | str:
    """What happened between two moments in which we got `num_tokens`; or why that cannot be said."""
    generated = after.generated - before.generated
    if not after.speculative and not generated:
        return "the server's /metrics has no counters of speculative decoding, nor of the tokens that we got"
    if fell_back(before, after):
        return FELL_BACK
    if generated > num_tokens * (1 + _OTHERS):
        mixed = f"the server decoded {generated:g} tokens meanwhile, {num_tokens} of them for us: its counters mix in what others asked"
        return f"{mixed} (vLLM 0.32 counts each request by itself with --per-request-spec-decode-metrics summary)"
    if generated < num_tokens * (1 - _OTHERS):
        return f"the server counted {generated:g} of our {num_tokens} tokens: its counters do not cover all that answers here"
    if not after.speculative:  # an engine that counts our tokens and no drafts makes none
        return ServerFigures("vllm", where, rounds=0.0, proposed=0.0, accepted=0.0)
    length = len(after.positions)
    old = (*before.positions, *(0.0,) * (length - len(before.positions)))
    return ServerFigures(
        "vllm",
        where,
        num_draft_tokens=length or None,
        rounds=after.rounds - before.rounds,
        proposed=after.proposed - before.proposed,
        accepted=after.accepted - before.accepted,
        position_counts=tuple(now - past for now, past in zip(after.positions, old, strict=True)),
    )
