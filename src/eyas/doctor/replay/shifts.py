"""Rows whose state, token or label stand elsewhere, and later steps at other positions.

Legend: B texts, T positions, R rows.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.measuring import compare, measure
from eyas.doctor.replay.trial import LEARNT, Option, bench_of, is_proven, try_options, unmended, weight_of
from eyas.draft.model import Eagle3Draft
from eyas.evaluate.infer.evidence import Batch
from eyas.evaluate.infer.lens import TRAINED_ON_LATER, lens_accuracy
from eyas.evaluate.infer.measure import p_value

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

# A state or token from further on can help a draft that never saw it in training: only a collapse in its own place speaks for a shift.
_FACTOR = 1.6
_LOOKING_BACK = 1.1  # what stands before its own place tells a draft less, unless it was trained on that
_RARER = 0.01
_FORESEEN, _REPEATED = 0.25, 0.85  # of the rows
_TRAIN_AGAIN = "the draft was trained on shifted rows: capture again with Eyas, or import the dump with the right convention, and train"


def try_pairs(exam: Examination) -> Outcome:
    """A state or token of a later position knows the answer: what a draft makes of it counts only if it is not worse than that itself."""
    bench = bench_of(exam)
    subject = bench.subject
    moves = [(shift, 0) for shift in (-2, -1, 1, 2)] + [(0, ahead) for ahead in (-2, -1, 1)] + [(1, -1), (-1, 1), (1, 1)]
    moves = [(shift, ahead) for shift, ahead in moves if not _gives_away(bench, subject.shift + shift, subject.ahead + ahead)]
    options = []
    for shift, ahead in moves:
        words = [f"the state of {abs(shift)} position{'s' if abs(shift) > 1 else ''} {'before' if shift > 0 else 'after'}"] if shift else []
        words += (
            [f"the token of {abs(ahead)} position{'s' if abs(ahead) > 1 else ''} {'before' if ahead < 0 else 'after'}"] if ahead else []
        )
        other = dataclasses.replace(subject, shift=subject.shift + shift, ahead=subject.ahead + ahead)
        factor = _LOOKING_BACK if shift >= 0 and ahead <= 0 else _FACTOR
        options.append(Option("each row reads " + " and ".join(words), other, _TRAIN_AGAIN, factor=factor))
    return try_options(exam, "pair-shift", options)


def _gives_away(bench: Bench, shift: int, ahead: int) -> bool:
    """Whether the draft, fed so, makes too little of an answer that it sees to have been trained on it: it is right more rarely than
    the states and the token that it reads there are by themselves, or not nearly always.
    """
    if shift >= 0 and ahead <= 0:
        return False
    moved = dataclasses.replace(bench.subject, shift=shift, ahead=ahead)
    result = bench.results(moved)[0]
    if result.accuracy < TRAINED_ON_LATER:
        return True
    told = [batch.label_BR == _tokens_of(batch, 1 + ahead) for batch in bench.evidence.first]
    known_N = torch.cat([hits_BR[batch.valid_BR] for hits_BR, batch in zip(told, bench.evidence.first, strict=True)])
    if shift < 0:
        places = [bench.evidence.taps.index(tap) for tap in moved.taps]
        seen_N = lens_accuracy(bench.target, bench.evidence.first, places, shift)
        known_N = known_N if int(known_N.sum()) > int(seen_N.sum()) else seen_N
    return int(result.hits.sum()) < int(known_N.sum()) and p_value(known_N, result.hits) <= _RARER


def try_labels(exam: Examination) -> Outcome:
    """Nothing can be mended here: a draft that says the token of another position was taught so.

    Not if it merely repeats what it reads, as one that was hardly trained does: one that was taught to do that does it always.
    """
    bench = bench_of(exam)
    result = bench.results(bench.subject)[0]
    said_N = bench.subject.ids[result.rows]
    shares = {offset: float((said_N == _tokens_at(exam, 2 + offset)).float().mean()) for offset in (-2, -1, 1, 2)}
    best = max(shares, key=lambda offset: shares[offset])
    numbers = {"own": result.accuracy, **{f"offset {offset:+d}": share for offset, share in shares.items()}}
    least = _REPEATED if best < 0 else _FORESEEN
    if shares[best] > least and shares[best] > _FACTOR * result.accuracy:
        own = percent(result.accuracy)
        text = f"it says the token {best:+d} from the one it should on {percent(shares[best])} of the rows, the right one on {own}"
        return confirmed(Fault("label-shift", "draft", (Evidence(text, numbers),), _TRAIN_AGAIN, 0.9, shadow=unmended(exam)))
    return ruled_out(f"it says the right token on {percent(result.accuracy)} of the rows, those beside it more rarely", **numbers)


def _tokens_at(exam: Examination, offset: int) -> torch.Tensor:
    """The text's token at row + offset [N]; -1 where there is none."""
    batches = bench_of(exam).evidence.first
    return torch.cat([_tokens_of(batch, offset)[batch.valid_BR] for batch in batches])


def _tokens_of(batch: Batch, offset: int) -> torch.Tensor:
    """[B, R]."""
    at_BR = batch.row_BR + offset
    last = batch.token_BT.shape[1] - 1
    return torch.where(at_BR <= last, batch.token_BT.gather(1, at_BR.clamp(0, last)), -1)


_LEAKED = 0.1  # in accuracy, at least
_BEYOND = {"the row behind its own": 1, "all rows of its text": 1 << 20}


def try_leak(exam: Examination) -> Outcome:
    """A mask that hid nothing: such a draft learnt to copy what stands behind its row, and is right if it may look there again."""
    bench = bench_of(exam)
    base = bench.results(bench.subject)[0]
    tried: dict[str, float] = {}
    for words, beyond in _BEYOND.items():

        def steps(
            draft: Eagle3Draft, tokens: torch.Tensor, states: torch.Tensor, rows: torch.Tensor, beyond: int = beyond
        ) -> list[torch.Tensor]:
            return first_step(draft, tokens, states, rows, beyond)

        screened = measure(bench.subject, bench.target, bench.evidence, (bench.evidence.search,), 1, steps)[0]
        if compare(screened, bench.screened(bench.subject)).gain < _LEAKED:
            continue
        won = compare(measure(bench.subject, bench.target, bench.evidence, bench.evidence.first, 1, steps)[0], base)
        tried[words] = won.after
        if won.decisive(False) and won.after > _FACTOR * won.before:
            text = f"if each row sees {words}, it is right on {percent(won.after)} of the rows, as in decoding on {percent(won.before)}"
            remedy = "train again with a causal mask: a row sees itself and those before it, nothing behind"
            covers = ("pair-shift", "step-shift", "architecture")
            evidence = Evidence(text, {"before": won.before, "after": won.after})
            return confirmed(Fault("mask-leak", "draft", (evidence,), remedy, weight_of(won), verified=True, covers=covers))
    return ruled_out(f"looking at later rows does not help it: right on {percent(base.accuracy)} without", tried=tried)


def _step_0(
    draft: Eagle3Draft, token_BT: torch.Tensor, states_BTS: torch.Tensor, row_BR: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], tuple[torch.Tensor, torch.Tensor]]:
    """Positions [B, T]; what the layer reads, and adds to, at the rows only; keys and values of every position."""
    layer = draft.midlayer
    position_BT = torch.arange(token_BT.shape[1]).expand(token_BT.shape)
    inputs = layer.inputs(draft.embed(_tokens(token_BT, position_BT + 1)), draft.fuse(states_BTS))
    at_rows = tuple(part.gather(1, row_BR[:, :, None].expand(-1, -1, part.shape[-1])) for part in inputs)
    return position_BT, at_rows, layer.key_value(inputs[0], layer.rotation(position_BT, inputs[0]))


def first_step(
    draft: Eagle3Draft, token_BT: torch.Tensor, states_BTS: torch.Tensor, row_BR: torch.Tensor, beyond: int
) -> list[torch.Tensor]:
    """As `unroll` with one step, but a row sees rows <= row + beyond, as far as its text goes."""
    layer = draft.midlayer
    position_BT, (both, residual), (key, value) = _step_0(draft, token_BT, states_BTS, row_BR)
    last_B1 = row_BR.max(dim=1, keepdim=True).values
    seen_BRT = position_BT[:, None, :] <= torch.minimum(row_BR + beyond, last_B1)[:, :, None]
    attended = _attended(layer.query(both, layer.rotation(row_BR, both)), key, value, seen_BRT)
    return [draft.feedback(layer.output(attended, residual))]


def try_steps(exam: Examination) -> Outcome:
    """Step 1 at another RoPE position, with another token, or with rows of step 0 that it should not see."""
    bench = bench_of(exam)
    first, base = bench.results(bench.subject, 2)
    options = {
        "step 1 stands at step 0's position": (0, 1, 0),
        "step 1 stands two positions on": (2, 1, 0),
        "step 1 reads step 0's token again": (1, 0, 0),
        "step 1 reads the token after its own": (1, 2, 0),
        "step 1 does not see its own row of step 0": (1, 1, -1),
    }
    tried, best = {}, None
    for words, (position, token, visible) in options.items():

        def steps(
            draft: Eagle3Draft,
            tokens: torch.Tensor,
            states: torch.Tensor,
            rows: torch.Tensor,
            at: tuple[int, int, int] = (position, token, visible),
        ) -> list[torch.Tensor]:
            return two_steps(draft, tokens, states, rows, *at)

        batches = (bench.evidence.search,)
        screened = compare(measure(bench.subject, bench.target, bench.evidence, batches, 2, steps)[1], bench.screened(bench.subject, 2))
        if screened.nats <= 0:
            continue
        tried[words] = won = compare(measure(bench.subject, bench.target, bench.evidence, bench.evidence.first, 2, steps)[1], base)
        if (
            won.decisive(False, proven=is_proven(exam, first.accuracy))
            and (best is None or won.after > tried[best].after)
            and won.after > max(1.1 * won.before, LEARNT * first.accuracy)
        ):
            best = words
    if best is None:
        return ruled_out(
            f"step 1 is right on {percent(base.accuracy)} of its rows, and at no other position more often", step_1=base.accuracy
        )
    won = tried[best]
    text = f"{best}: with the fix, accuracy at step 1 {percent(won.before)} -> {percent(won.after)}"
    remedy = "serve it as it was trained, or train again: step k reads token p+1+k at RoPE position p+k"
    return confirmed(
        Fault("step-shift", "draft", (Evidence(text, {"before": won.before, "after": won.after}),), remedy, weight_of(won), verified=True)
    )


def two_steps(
    draft: Eagle3Draft, token_BT: torch.Tensor, states_BTS: torch.Tensor, row_BR: torch.Tensor, position: int, token: int, visible: int
) -> list[torch.Tensor]:
    """As `unroll`, but step 1 stands at row + position, reads token[row + 1 + token], and sees rows <= row + visible of step 0."""
    layer = draft.midlayer
    position_BT, (both, residual), (key, value) = _step_0(draft, token_BT, states_BTS, row_BR)
    seen_BRT = position_BT[:, None, :] <= row_BR[:, :, None]
    attended = _attended(layer.query(both, layer.rotation(row_BR, both)), key, value, seen_BRT)
    first = draft.feedback(layer.output(attended, residual))
    both, residual = layer.inputs(draft.embed(_tokens(token_BT, row_BR + 1 + token)), first)
    rotation = layer.rotation(row_BR + position, both)
    own = layer.key_value(both, rotation)
    seen_BRT = position_BT[:, None, :] <= (row_BR + visible)[:, :, None]
    return [first, draft.feedback(layer.output(_attended(layer.query(both, rotation), key, value, seen_BRT, own), residual))]


def _tokens(token_BT: torch.Tensor, at_BR: torch.Tensor) -> torch.Tensor:
    return token_BT.gather(1, at_BR.clamp(max=token_BT.shape[1] - 1))


def _attended(
    query_BNRD: torch.Tensor, key_BKTD: torch.Tensor, value_BKTE: torch.Tensor, seen_BRT: torch.Tensor, own: tuple[torch.Tensor, ...] = ()
) -> torch.Tensor:
    """Softmax attention [B, N, R, E] over the rows seen and, with `own`, each row's own key and value besides."""
    groups, length = query_BNRD.shape[1] // key_BKTD.shape[1], key_BKTD.shape[2]
    query_BNRD = query_BNRD * query_BNRD.shape[-1] ** -0.5
    key_BNTD, value_BNTE = (x.repeat_interleave(groups, dim=1) for x in (key_BKTD, value_BKTE))
    scores = (query_BNRD @ key_BNTD.transpose(-1, -2)).masked_fill(~seen_BRT[:, None], float("-inf"))
    if own:
        own_key, own_value = (x.repeat_interleave(groups, dim=1) for x in own)
        scores = torch.cat([scores, (query_BNRD * own_key).sum(-1, keepdim=True)], dim=-1)
    weights = scores.softmax(-1)
    mixed = weights[..., :length] @ value_BNTE
    return mixed + weights[..., length:] * own_value if own else mixed
