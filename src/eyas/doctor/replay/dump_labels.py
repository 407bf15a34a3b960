"""The dump's labels: does the state that they come from give the target's own tokens, in its own place and by the right norm?

Shapes: T positions, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, untestable
from eyas.doctor.replay.samples import RawSample
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_RIGHT = 0.97  # share of rows on which two readings of one state agree, near-ties left
_MOST = 48  # samples
_AGAIN = "capture again: labels must be the target's last state, at the row's own position"
_SHIFTS = (-2, -1, 1, 2)


@torch.no_grad()
def check_labels(exam: Examination) -> Outcome:
    """Which reading of the stored state gives the tokens: as stored, normed, from before the norm, or shifted."""
    target = exam.parts
    if target is None:
        return untestable(exam.why_no_bench)
    samples = [sample for sample in exam.samples[:_MOST] if _usable(sample, target)]
    if not samples:
        return untestable("the dump holds no state that labels come from")
    own = _own_tokens(exam, samples)
    if own is None:
        return untestable("neither the dump nor a target with its layers says which tokens are the target's own")
    shares = _shares(target, samples, own)
    as_stored = shares["as stored"]
    exam.measured["dump_labels"] = shares
    if as_stored >= _RIGHT:
        return ruled_out(f"the labels' state gives the target's own tokens on {percent(as_stored)} of the rows", **shares)
    best = max(shares, key=lambda name: shares[name])
    text = f"the labels' state gives the target's own tokens on {percent(as_stored)} of the rows"
    if shares[best] >= max(0.8, as_stored + 0.1):
        code = "label-shift" if "rows" in best else "teacher-norm"
        words = f"{text}, and {best} on {percent(shares[best])}"
        return confirmed(
            Fault(code, "dump", (Evidence(words, shares),), _AGAIN, 0.92, verified=True, shadow=("dump-changed", "teacher-layer"))
        )
    if as_stored >= 0.9:
        return ruled_out(f"{text}: fewer than all, but no other reading gives more", **shares)
    return confirmed(
        Fault(
            "teacher-layer", "dump", (Evidence(text + ", whatever norm or shift is tried", shares),), _AGAIN, 0.88, shadow=("dump-changed",)
        )
    )


def _usable(sample: RawSample, target: Target) -> bool:
    teacher = sample.teacher
    return teacher is not None and teacher.shape == (len(sample.token_ids), target.hidden_size) and bool(torch.isfinite(teacher).all())


def _own_tokens(exam: Examination, samples: Sequence[RawSample]) -> list[torch.Tensor] | None:
    """By the target itself where it can run, else as stored."""
    target = exam.loaded_target
    if target is not None and all(int(one.token_ids.min()) >= 0 and int(one.token_ids.max()) < target.vocab_size for one in samples):
        from eyas.capture.forward import capture_batch

        return [item.top1 for sample in samples for item in capture_batch(target, [sample.token_ids.tolist()], ())]
    stored = [sample.top1 for sample in samples]
    return [one for one in stored if one is not None] if all(one is not None for one in stored) else None


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
        text = f"the target's own token after p is the text's at p+{1 + best} on {percent(shares[best])} of the answer rows, at p+1 on {percent(shares[0])}"
        code = "label-shift" if _states_fit(exam, samples) else "pair-shift"
        shadow = (
            ("dump-changed", "text-foreign", "teacher-layer", "label-shift")
            if code == "pair-shift"
            else ("dump-changed", "text-foreign", "teacher-layer")
        )
        return confirmed(
            Fault(
                code,
                "dump",
                (Evidence(text, numbers),),
                "move the tokens back by as much, or capture again",
                0.93,
                verified=True,
                shadow=shadow,
            )
        )
    return ruled_out(f"the target's own token is the text's next one on {percent(shares[0])} of the answer rows", **numbers)


def _states_fit(exam: Examination, samples: Sequence[RawSample]) -> bool:
    """Whether states and tokens fit each other, so that only the labels moved: seen where the embedding is among the slots, or by a forward."""
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
