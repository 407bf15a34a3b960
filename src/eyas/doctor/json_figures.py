"""Figures of acceptance in JSON, under the names that servers, their clients and Eyas itself give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from eyas.doctor.server_figures import ServerFigures

_MAX_DEPTH = 12
_ROUNDS = ("num_drafts", "rounds", "num_rounds", "spec_verify_ct", "verify_ct", "num_spec_steps")
_PROPOSED = ("num_draft_tokens", "draft_tokens", "proposed", "spec_num_proposed_drafts", "spec_draft_token_num", "total_draft_tokens")
_ACCEPTED = (
    "num_accepted_tokens",
    "accepted_tokens",
    "accepted",
    "spec_num_correct_drafts",
    "spec_accept_token_num",
    "spec_accepted_drafts",
    "num_accepted_draft_tokens",
)
_COUNTS = ("num_accepted_tokens_per_pos", "acceptance_counts")
_RATES = ("per_position_acceptance_rates", "per_position_acceptance_rate", "acceptance_rate_per_pos", "unconditional")
_LENGTH = (
    "vllm_acceptance_length",
    "mean_acceptance_length",
    "acceptance_length",
    "avg_spec_accept_length",
    "spec_accept_length",
    "accept_length",
)
_RATE = ("draft_acceptance_rate", "acceptance_rate", "spec_accept_rate", "accept_rate")
_SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_HISTOGRAM = (*_SGLANG_HISTOGRAM, "acceptance_histogram")
_K = ("num_speculative_tokens", "num_spec_tokens")
_K_AND_ONE = ("speculative_num_draft_tokens", "spec_num_draft_tokens")
_STARTS = ("vllm:", "spec_decode_", "sglang:")
_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def figures_in(value: Any, where: str) -> list[ServerFigures]:
    """One entry for each object that holds figures, outermost first. K is taken from wherever the file names it."""
    measured = value.get("measured") if isinstance(value, Mapping) else None
    if isinstance(measured, Mapping) and "vllm_acceptance_length" in measured:  # a report of eyas evaluate
        return [_figures(dict(measured), where, None)]
    known = next((k for item in _objects(value, 0) if (k := _k_of(item)) is not None), None)
    found = []
    for item in _objects(value, 0):
        figures = _figures(item, where, known)
        if figures.rounds or figures.acceptance_length is not None or figures.position_rates or figures.acceptance_rate is not None:
            found.append(figures)
    return found


def _figures(item: dict[str, Any], where: str, known: int | None) -> ServerFigures:
    histogram = _numbers(item, _HISTOGRAM)
    counts, rounds = _numbers(item, _COUNTS), _number(item, _ROUNDS)
    if histogram and not counts:  # entry j: rounds that accepted exactly j drafts
        rounds = rounds or sum(histogram)
        counts = tuple(reversed(list(accumulate(reversed(histogram[1:])))))
    ours = "vllm_acceptance_length" in item
    request = any(name in item for name in ("spec_verify_ct", *_SGLANG_HISTOGRAM))
    sglang = request or any(name.startswith(("spec_", "avg_spec_")) for name in item)
    proposed, accepted = None if ours else _number(item, _PROPOSED), _number(item, _ACCEPTED)
    return ServerFigures(
        "eyas" if ours else "sglang" if sglang else "vllm" if {"num_drafts", "num_spec_steps"} & set(item) else "unknown",
        where,
        num_draft_tokens=_whole(item, "num_draft_tokens") if ours else _k_of(item) or known,
        rounds=rounds,
        proposed=proposed,
        accepted=accepted if not histogram else accepted or sum(counts),
        position_counts=counts,
        position_rates=() if ours and rounds is None else _numbers(item, _RATES),
        acceptance_length=_number(item, _LENGTH),
        acceptance_rate=_share(_number(item, _RATE), proposed, accepted),
        drafts_only=None if sglang and not request else True,
        length_has_prefill=request,
    )


def _share(rate: float | None, proposed: float | None, accepted: float | None) -> float | None:
    """A rate beside counts that make it a percentage, as vLLM's benchmark writes it, is one."""
    if rate is None or not proposed or accepted is None or abs(rate - 100 * accepted / proposed) > 0.06:
        return rate
    return rate / 100


def _objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Every object in the JSON, its keys without an engine's prefix and `_total`, and in one spelling: numDrafts is num_drafts."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield {_plain(str(name)): part for name, part in value.items()}
        for part in value.values():
            yield from _objects(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _objects(part, depth + 1)


def _plain(name: str) -> str:
    for start in _STARTS:
        name = name.removeprefix(start)
    return _INNER_CAPITAL.sub("_", name).lower().removesuffix("_total")


def _k_of(item: Mapping[str, Any]) -> int | None:
    for name in _K:
        if (k := _whole(item, name)) is not None:
            return k
    for name in _K_AND_ONE:
        if (k := _whole(item, name)) is not None and k > 1:
            return k - 1
    return None


def _whole(item: Mapping[str, Any], name: str) -> int | None:
    value = item.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(item: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = item.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _numbers(item: Mapping[str, Any], names: tuple[str, ...]) -> tuple[float, ...]:
    for name in names:
        value = item.get(name)
        if isinstance(value, list) and value and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value):
            return tuple(float(one) for one in value)
    return ()
