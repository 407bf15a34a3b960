"""The dump's labels: does the state that they come from give the target's own tokens, in its own place and by the right norm?

Shapes: T positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eyas.capture.forward import capture_batch
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.dump_tokens import stored_tokens
from eyas.doctor.replay.samples import RawSample
from eyas.taps import Tap
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MOST = 48  # samples
_AGAIN = "capture again: labels must be the target's last state, at the row's own position"
_SHIFTS = (-2, -1, 1, 2)


def check_labels(exam: Examination) -> Outcome:
    """By the states themselves where the target can run, else by which reading of the stored state gives the stored tokens."""
    target = exam.parts
    if target is None:
        return untestable(exam.why_no_bench)
    samples = [sample for sample in exam.samples[:_MOST] if _usable(sample, target)]
    if not samples:
        return untestable("the dump holds no state that labels come from")
    whole = exam.loaded_target
    known = [one for one in samples if int(one.token_ids.min()) >= 0 and int(one.token_ids.max()) < target.vocab_size]
    if whole is not None and known:
        return _by_states(exam, whole, known[:_COMPARED])
    odd = _of_no_norm(target, samples)
    if odd is not None:
        return odd
    if samples[0].top1 is None:
        return untestable("neither the dump nor a target with its layers says which tokens are the target's own")
    return _by_tokens(exam, target, samples)


@torch.no_grad()
def _by_states(exam: Examination, target: Target, samples: Sequence[RawSample]) -> Outcome:
    """The stored state beside every state that it could be."""
    right = FINAL if samples[0].normed else PRENORM
    distances: dict[str, list[torch.Tensor]] = {}
    rights = []
    for sample in samples:
        assert sample.teacher is not None
        found_TH = sample.teacher.float()
        candidates = _candidates(target, sample)
        rights.append(candidates[right])
        for name, state_TH in candidates.items():
            error_T = (found_TH - state_TH).norm(dim=-1) / state_TH.norm(dim=-1).clamp_min(1e-9)
            distances.setdefault(name, []).append(error_T[2:-2] if len(error_T) > 8 else error_T)
    medians = {name: float(torch.cat(parts).median()) for name, parts in distances.items()}
    best = min(medians, key=lambda name: medians[name])
    exam.measured["dump_labels"] = medians
    nearest = dict(sorted(medians.items(), key=lambda item: item[1])[:4])
    if best == right or medians[right] < 0.02:
        wrong = _of_other_length(samples, rights, medians[right]) or stored_tokens(target, samples)
        return wrong or ruled_out(f"the labels' state is {right} (distance {medians[right]:.2g})", **nearest)
    if medians[best] < 0.5 * medians[right] and medians[best] < 0.3:
        text = f"the labels' state is {best} (distance {medians[best]:.2g}), not {right} ({medians[right]:.2g})"
        code = "label-shift" if "rows" in best else "teacher-norm" if "norm" in best and "layer" not in best else "teacher-layer"
        return confirmed(Fault(code, "dump", (Evidence(text, nearest),), _AGAIN, 0.92, verified=True, covers=_FOLLOWS))
    text = f"the labels' state is none of the target's: nearest is {best} (distance {medians[best]:.2g})"
    if isinstance(exam.slot_verdicts, tuple) and all(slot.found is None for slot in exam.slot_verdicts):
        words = f"{text}, and no slot holds one either: these are not the tokens that were captured"
        return confirmed(Fault("dump-other-rows", "dump", (Evidence(words, nearest),), _AGAIN, 0.92, covers=_OF_OTHER_TEXTS))
    return confirmed(Fault("teacher-layer", "dump", (Evidence(text, nearest),), _AGAIN, 0.82, shadow=("target-changed",), covers=_FOLLOWS))


def _of_other_length(samples: Sequence[RawSample], rights: Sequence[torch.Tensor], distance: float) -> Outcome | None:
    """The right direction in another length: the head's logits, and with them the soft labels, are as much too sharp or too flat."""
    factors, errors = [], []
    for sample, right_TH in zip(samples, rights, strict=True):
        assert sample.teacher is not None
        factor_T = (sample.teacher.float() * right_TH).sum(-1) / right_TH.square().sum(-1).clamp_min(1e-12)
        scaled_TH = right_TH * factor_T[:, None]
        factors.append(factor_T)
        errors.append((sample.teacher.float() - scaled_TH).norm(dim=-1) / scaled_TH.norm(dim=-1).clamp_min(1e-9))
    factor, error = float(torch.cat(factors).median()), float(torch.cat(errors).median())
    if abs(factor - 1) < _SAME_LENGTH or error > 0.5 * distance:
        return None
    text = f"the labels' state is the right one, {factor:.3g} times as long (distance {error:.2g} beside {distance:.2g} as it is)"
    return confirmed(Fault("teacher-norm", "dump", (Evidence(text, {"factor": factor}),), _AGAIN, 0.9, verified=True, covers=_FOLLOWS))


FINAL, PRENORM = "the state after the final norm", "the last state before the final norm"
_COMPARED = 6
_SAME_LENGTH = 0.05
_FOLLOWS = ("dump-other-rows",)
_OF_OTHER_TEXTS = ("template-differs", "text-foreign", "mask-rule", "target-changed")


def _candidates(target: Target, sample: RawSample) -> dict[str, torch.Tensor]:
    taps = [Tap(boundary) for boundary in range(target.num_layers + 1)]
    captured = capture_batch(target, [sample.token_ids.tolist()], taps, want_top1=False)[0]
    states = captured.states.float().split(target.hidden_size, dim=-1)
    final_TH = captured.final.float()
    right_TH = final_TH if sample.normed else states[-1]
    found = {FINAL: final_TH, PRENORM: states[-1], "the final norm applied twice": target.norm(final_TH)}
    for tap, state_TH in zip(taps[:-1], states[:-1], strict=True):
        found[f"{tap}, a layer's own state"] = state_TH
        found[f"{tap}, a layer's state through the final norm"] = target.norm(state_TH)
    for shift in _SHIFTS:
        found[f"the right one, moved by {shift:+d} rows"] = right_TH.roll(shift, dims=0)
    return found


@torch.no_grad()
def _of_no_norm(target: Target, samples: Sequence[RawSample]) -> Outcome | None:
    """What left an RMS norm has rows of one length, once the norm's weights are taken off. None if these have, or for another norm."""
    drawn = target.norm(torch.randn(64, target.hidden_size, generator=torch.Generator().manual_seed(0)))
    if not samples[0].normed or float((_lengths(target, drawn) - 1).abs().max()) > 0.01:
        return None
    lengths = torch.cat([_lengths(target, sample.teacher.float()) for sample in samples if sample.teacher is not None])
    if float((lengths - 1).abs().median()) < _SAME_LENGTH:
        return None
    low, high = lengths.quantile(0.1), lengths.quantile(0.9)
    text = f"the labels' state is none that left the final norm: without its weights, rows are {low:.3g} to {high:.3g} times as long"
    return confirmed(
        Fault("teacher-norm", "dump", (Evidence(text, {"low": float(low), "high": float(high)}),), _AGAIN, 0.9, covers=_FOLLOWS)
    )


def _lengths(target: Target, state_TH: torch.Tensor) -> torch.Tensor:
    return _unnormed(target, state_TH).square().mean(-1).sqrt()


@torch.no_grad()
def _by_tokens(exam: Examination, target: Target, samples: Sequence[RawSample]) -> Outcome:
    own = [sample.top1 for sample in samples if sample.top1 is not None]
    shares = _shares(target, samples, own)
    as_stored = shares["as stored"]
    exam.measured["dump_labels"] = shares
    best = max(shares, key=lambda name: shares[name])
    text = f"the labels' state gives the dump's own tokens on {percent(as_stored)} of the rows"
    if shares[best] >= max(0.8, as_stored + 0.005) and shares[best] > 1 - 0.5 * (1 - as_stored):
        code = "label-shift" if "rows" in best else "teacher-norm"
        words = f"{text}, and {best} on {percent(shares[best])}"
        return confirmed(Fault(code, "dump", (Evidence(words, shares),), _AGAIN, 0.92, verified=True, covers=(*_FOLLOWS, "teacher-layer")))
    if as_stored >= 0.9:
        return ruled_out(f"{text}; no other reading gives more", **shares)
    whatever = Evidence(text + ", whatever norm or shift is tried", shares)
    return confirmed(Fault("teacher-layer", "dump", (whatever,), _AGAIN, 0.88, covers=_FOLLOWS))


def _usable(sample: RawSample, target: Target) -> bool:
    teacher = sample.teacher
    return teacher is not None and teacher.shape == (len(sample.token_ids), target.hidden_size) and bool(torch.isfinite(teacher).all())


def _shares(target: Target, samples: Sequence[RawSample], own: Sequence[torch.Tensor]) -> dict[str, float]:
    hits: dict[str, int] = {}
    totals: dict[str, int] = {}

    def count(name: str, said: torch.Tensor, wanted: torch.Tensor) -> None:
        hits[name] = hits.get(name, 0) + int((said == wanted).sum())
        totals[name] = totals.get(name, 0) + len(wanted)

    for sample, tokens in zip(samples, own, strict=True):
        assert sample.teacher is not None
        state_TH = sample.teacher.float()
        ready_TH = state_TH if sample.normed else target.norm(state_TH)
        plain = target.head(ready_TH[None])[0].argmax(-1)
        count("as stored", plain, tokens)
        count("once more through the final norm", target.head(target.norm(ready_TH)[None])[0].argmax(-1), tokens)
        bare = target.head(_unnormed(target, ready_TH)[None])[0].argmax(-1)
        count("without the weights of a second final norm", bare, tokens)
        if not sample.normed:
            count("without the final norm", target.head(state_TH[None])[0].argmax(-1), tokens)
        for shift in _SHIFTS:
            a, b = (plain[shift:], tokens[:-shift]) if shift > 0 else (plain[:shift], tokens[-shift:])
            if len(a):
                count(f"moved by {shift:+d} rows", a, b)
    return {name: hits[name] / max(1, totals[name]) for name in hits}


def _unnormed(target: Target, state_TH: torch.Tensor) -> torch.Tensor:
    """A state that was normed twice, with the second norm's weights taken off again."""
    probe = target.norm(torch.ones(1, state_TH.shape[-1]))[0]
    return state_TH / torch.where(probe.abs() > 1e-3, probe, torch.ones_like(probe))


def check_tokens(exam: Examination) -> Outcome:
    """The target's own next tokens are mostly the text's: shifted against it they are not. Stored ones and the label's state alike."""
    samples = [sample for sample in exam.samples if sample.top1 is not None and len(sample.top1) == len(sample.token_ids)]
    if not samples:
        return untestable("the dump stores no tokens of the target's own")
    shares = {shift: _follows(samples, shift) for shift in (-2, -1, 0, 1, 2)}
    best = max(shares, key=lambda shift: shares[shift])
    numbers = {f"shift {shift:+d}": share for shift, share in shares.items()}
    if best != 0 and shares[best] > 0.5 and shares[best] > 1.5 * shares[0]:
        where = f"at p+{1 + best} on {percent(shares[best])} of the answer rows, at p+1 on {percent(shares[0])}"
        text = f"the target's own token after p is the text's {where}"
        code = "label-shift" if _states_fit(exam, samples) else "pair-shift"
        covers = ("text-foreign", "teacher-layer")
        remedy = "move the tokens back by as much, or capture again"
        return confirmed(Fault(code, "dump", (Evidence(text, numbers),), remedy, 0.93, verified=True, covers=covers))
    return ruled_out(f"the target's own token is the text's next one on {percent(shares[0])} of the answer rows", **numbers)


def _states_fit(exam: Examination, samples: Sequence[RawSample]) -> bool:
    """Whether states stand beside their own tokens, so that only the labels moved."""
    from eyas.doctor.replay.dump_slots import tokens_fit

    return tokens_fit(exam, samples)


def _follows(samples: Sequence[RawSample], shift: int) -> float:
    """Share of answer rows p on which the target's own token after p is the text's token at p + 1 + shift."""
    hits = total = 0
    for sample in samples:
        assert sample.top1 is not None
        rows = sample.answer_rows
        at = rows + 1 + shift
        good = (at >= 0) & (at < len(sample.token_ids))
        hits += int((sample.top1[rows[good]] == sample.token_ids[at[good]]).sum())
        total += int(good.sum())
    return hits / max(1, total)
