"""Which wrong wiring gives the acceptance that a server shows: each usual one is walked over the server's own answers.

Nothing of this is seen inside of the server. But a walk has several figures, one for each position, and few wirings give the
same ones; so what reproduces them is named, with the figures of all three: served, so explained, and as declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from eyas.capture.forward import capture_batch
from eyas.doctor.checks.taps import default_boundaries
from eyas.doctor.hypothesis import percent
from eyas.doctor.readings import Reading
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of
from eyas.doctor.server.asking import Pass
from eyas.doctor.server.walked import Walked, answers_of, walk_all
from eyas.evaluate.answers import Answer, spread
from eyas.evaluate.forecast import forecast_states
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MOST_BYTES = 2 << 30  # of states that are held
_MOST_ORDERS = 4  # slots up to which every order is tried
_FITS, _DEVIATIONS, _TURNED = 0.03, 2.5, 0.16  # how near the rates must come: so much, and deviations of a share of turned rounds
_ALIKE = 0.01  # what comes so near, or within twice the distance of the best, explains as much
_CLEARLY = 2.0  # how many times farther off the declared wiring must be


@dataclass(frozen=True)
class Candidate:
    """A wrong wiring: in words, with the code that it is told under. `turn`: rows by which states lag behind tokens."""

    words: str
    code: str
    remedy: str
    subject: Subject
    turn: int = 0


@dataclass(frozen=True)
class Explanation:
    """`distance`: the largest difference of a position's rate to what the server shows. `taps`: what it seems to feed."""

    code: str
    text: str
    remedy: str
    distance: float
    taps: tuple[Tap, ...]


def explain(exam: Examination, made: Pass, reading: Reading, name: str) -> Explanation | None:
    """`name` is the server's. None if no usual fault gives these figures, or the declared wiring gives them nearly as well.

    Under the code served-below if several faults give them: then they are named together, and none is the cause yet.
    """
    given, target = bench_of(exam).given, exam.loaded_target
    served = [item.value for item in reading.unconditional if item.value is not None]
    if target is None or not served or len(served) < len(reading.unconditional):
        return None
    every = answers_of(made)
    states = _States(target, _affordable(every, target))
    tried = [(candidate, states.walk(candidate, len(served))) for candidate in (_declared(given), *candidates(given, target, name))]
    away = [(candidate, found, _distance(found, served)) for candidate, found in tried]
    declared = away[0]
    best = min(away[1:], key=lambda item: item[2])
    if best[2] > _tolerance(best[1].figures.rounds, len(states.answers) < len(every)) or declared[2] < _CLEARLY * best[2]:
        return None
    alike = [item[0] for item in sorted(away[1:], key=lambda item: item[2]) if item[2] <= max(_ALIKE, 2 * best[2])]
    figures = f"by position {_row(best[1])} of all rounds; served {_shares(served)}; as declared {_row(declared[1])}"
    words = "; or ".join(candidate.words for candidate in alike[:4])
    text = f"{name} accepts as the draft does with {words}: {figures}"
    if len({candidate.code for candidate in alike}) > 1:
        return Explanation("served-below", text, "", best[2], given.taps)
    return Explanation(best[0].code, text, best[0].remedy, best[2], best[0].subject.taps)


class _States:
    """Every state of the target over some answers, captured once."""

    def __init__(self, target: Target, answers: list[Answer]) -> None:
        self.target, self.answers = target, answers
        self._taps = (*(Tap(boundary) for boundary in range(target.num_layers + 1)), Tap(None))
        self._captured = capture_batch(target, [answer.token_ids for answer in answers], self._taps)

    def walk(self, candidate: Candidate, num_draft_tokens: int) -> Walked:
        subject, size = candidate.subject, self.target.hidden_size
        places = [self._taps.index(tap) for tap in subject.taps]
        fed = [torch.cat([item.states[:, place * size : (place + 1) * size] for place in places], dim=-1) for item in self._captured]
        fed = [states.roll(candidate.turn, dims=0) for states in fed]
        top1 = [item.top1 for item in self._captured]
        forecasts = forecast_states(subject.build(self.target), self.answers, fed, top1, num_draft_tokens)
        return walk_all(self.answers, forecasts, num_draft_tokens)


def _affordable(answers: list[Answer], target: Target) -> list[Answer]:
    """All of them, if all their states can be held."""
    token_bytes = (target.num_layers + 2) * target.hidden_size * 4
    every = sum(len(answer.token_ids) for answer in answers) * token_bytes
    return spread(answers, max(1, int(len(answers) * min(1.0, _MOST_BYTES / every))))


def candidates(given: Subject, target: Target, engine: str) -> Iterator[Candidate]:
    """What engines are known to do to a draft that is right."""
    yield from _other_states(given, target, engine)
    yield from _other_norms(given, engine)
    config, tensors = given.config, given.tensors
    if not config.full_vocabulary:
        lost = given.having({"d2t": torch.zeros_like(tensors["d2t"])})
        yield Candidate(
            "the map of its vocabulary ignored", "map-missing", "write d2t under the name that the engine reads: eyas export", lost
        )
    for rope in ({"rope_type": "default", "rope_theta": 10000.0}, getattr(target.config, "rope_parameters", None)):
        if isinstance(rope, dict) and "rope_theta" in rope and rope != config.rope_parameters:
            remedy = "write RoPE in both schemas, where every reader looks: eyas export does"
            yield Candidate(f"RoPE of theta {rope['rope_theta']:g}", "rope-schema", remedy, given.configured(rope_parameters=dict(rope)))
    if (
        config.lm_head_source == "draft"
        and config.hidden_size == target.hidden_size
        and bool((given.ids >= 0).all())
        and bool((given.ids < target.vocab_size).all())
    ):
        rows = target.head_rows(given.ids).float()
        yield Candidate(
            "the target's lm_head in place of its own",
            "head-foreign",
            "make the engine load the draft's own lm_head",
            given.having({"lm_head.weight": rows}),
        )
    if config.own_embedding:
        other = given.having({"embed_tokens.weight": _embedding(target)})
        yield Candidate(
            "the target's embedding in place of its own", "embedding-foreign", "make the engine load the draft's own embedding", other
        )
    for turn in (1, -1):
        words = f"each state one token too {'late' if turn > 0 else 'early'}"
        yield Candidate(words, "pair-shift", "report it to the engine: its rows pair other states and tokens than in training", given, turn)


def _declared(given: Subject) -> Candidate:
    return Candidate("its declared wiring", "served-below", "", given)


def _other_states(given: Subject, target: Target, engine: str) -> Iterator[Candidate]:
    here = [tap.boundary for tap in given.taps]
    last = target.num_layers
    remedy = (
        f"make the engine feed {format_taps(given.taps)}: eyas export writes the ids that it reads so, eyas wiring translate shows them"
    )
    seen = {given.taps}
    for boundaries, code in _feeds(here, last):
        taps = tuple(Tap(boundary) for boundary in boundaries)
        if taps not in seen and all(one is None or 0 <= one <= last for one in boundaries):
            seen.add(taps)
            yield Candidate(f"{format_taps(taps)} in its slots", code, remedy, Subject(**{**vars(given), "taps": taps}))


def _feeds(here: list[int | None], last: int) -> Iterator[tuple[list[int | None], str]]:
    moved = {step: [None if one is None else one + step for one in here] for step in (1, -1)}
    yield from ((boundaries, "taps-engine") for boundaries in moved.values())
    if len(here) == 3:
        default: list[int | None] = list(default_boundaries(last))
        yield default, "slot-order" if set(default) == set(here) else "taps-engine"
    if len(here) <= _MOST_ORDERS:
        yield from (([here[old] for old in order], "slot-order") for order in permutations(range(len(here))))
    for slot in range(len(here)):
        yield from (([*here[:slot], boundaries[slot], *here[slot + 1 :]], "taps-engine") for boundaries in moved.values())


def _other_norms(given: Subject, engine: str) -> Iterator[Candidate]:
    config = given.config
    remedy = f"use an engine version that honours the switch ({engine} seems not to): eyas doctor --engine says which do"
    for name in ("norm_output", "norm_before_residual"):
        value = not getattr(config, name)
        yield Candidate(f"{name} {str(value).lower()}", "norm-engine", remedy, given.configured(**{name: value}))
    norms = {"norm_before_fc": ["input_norm.weight"], "fc_norm": [name for name in given.tensors if name.startswith("fc_norm.")]}
    for name, tensors in norms.items():
        if getattr(config, name):
            yield Candidate(f"{name} left out", "norm-engine", remedy, given.without(*tensors, **{name: False}))


def _distance(found: Walked, served: list[float]) -> float:
    return max(abs(rate - seen) for rate, seen in zip(found.unconditional, served, strict=True))


def _tolerance(rounds: int, sampled: bool) -> float:
    """bf16 turns a draft in a few of a hundred rounds; over some of the answers only, a share differs by chance as well."""
    spread = 0.5 if sampled else _TURNED
    return float(_FITS + _DEVIATIONS * spread * max(1, rounds) ** -0.5)


def _row(found: Walked) -> str:
    return _shares(found.unconditional)


def _shares(rates: list[float]) -> str:
    return ", ".join(percent(rate) for rate in rates)


def _embedding(target: Target) -> torch.Tensor:
    weight = target.embed.weight
    assert isinstance(weight, torch.Tensor)
    return weight.float()
