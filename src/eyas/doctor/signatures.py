"""What reported figures alone suggest: the first suspects by the shape of acceptance, as kinds that are tested sooner.

The table is made of public reports: which causes were found behind which figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.doctor.examination import Examination

_RAISE = 3.0


def boosts(exam: Examination) -> dict[str, float]:
    """How many times likelier each kind is than without the figures."""
    return {kind: _RAISE for line in suspicions(exam) for kind in line.rsplit("(", 1)[-1].rstrip(")").split(", ")}


def suspicions(exam: Examination) -> tuple[str, ...]:
    """Sentences that end in the kinds they speak for, in brackets; none without readings."""
    if not {"server", "metrics", "log"} & set(exam.exhibits.given()):
        return ()
    from eyas.doctor.reported import rates_of

    return tuple(dict.fromkeys(line for name, rates, length in rates_of(exam) for line in suspects(name, rates, length)))


def suspects(name: str, rates: Sequence[float], length: float | None) -> list[str]:
    """By conditional acceptance rates of the positions, and tokens a round; where only these are known, they bound the first rate."""
    found = []
    most = len(rates) + 1
    first = rates[0] if rates else None if length is None else length - 1
    if length is not None and length <= 1.005:
        found.append(f"{name}: nothing is ever accepted: lm_head random or missing, stale draft, NaN, length gate (G, S, N, E)")
    elif length is not None and rates and length >= most - 0.005:
        found.append(f"{name}: every draft is accepted: NaN logits that pass for agreement, or a loop (N, R)")
    elif first is not None and first <= 0.12:
        found.append(f"{name}: almost nothing is accepted: wrong layers, another order of slots, or the vocabulary map ignored (A, C, F)")
    elif first is not None and first <= 0.3:
        found.append(f"{name}: the first position is weak: layers off by one, order of slots, a norm (A, C, B)")
    elif len(rates) > 1 and rates[1] < 0.6 * rates[0]:
        found.append(f"{name}: later positions fall too fast: state fed back, positions, RoPE (B, D, E)")
    return found
