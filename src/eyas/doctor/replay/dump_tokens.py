"""The tokens that a dump stores as the target's own, beside the state that they are to come from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent
from eyas.doctor.replay.samples import RawSample
from eyas.targets.target import Target

_AGAIN = "capture again: the stored tokens must be those that the labels' state gives at its own position"
_AGREE, _STRANGE = 0.9, 0.2
_SHIFTS = (-2, -1, 1, 2)


@torch.no_grad()
def stored_tokens(target: Target, samples: Sequence[RawSample]) -> Outcome | None:
    """What is wrong with them where the state itself is right; None if nothing is, or if the head may have changed since."""
    said = [(one.top1, _said(target, one)) for one in samples if one.top1 is not None and len(one.top1) == len(one.token_ids)]
    if not said:
        return None
    shares = {shift: _share(said, shift) for shift in (0, *_SHIFTS)}
    best = max(shares, key=lambda shift: shares[shift])
    text = f"the stored tokens are those of the labels' state on {percent(shares[0])} of the rows"
    if best != 0 and shares[best] >= _AGREE > shares[0]:
        text += f", and moved by {-best:+d} on {percent(shares[best])}"
        return confirmed(Fault("label-shift", "dump", (Evidence(text, _named(shares)),), _AGAIN, 0.91, verified=True, covers=_FOLLOWS))
    texts = [(one.top1[:-1], one.token_ids[1:]) for one in samples if one.top1 is not None and len(one.top1) == len(one.token_ids)]
    copied = _share(texts, 0)
    if copied >= 0.99 > shares[0] + 0.02:
        text += f"; they are the text's next tokens on {percent(copied)}: the draft would learn the text, and not the target"
        return confirmed(Fault("teacher-layer", "dump", (Evidence(text, {"copied": copied}),), _AGAIN, 0.88, covers=_FOLLOWS))
    if shares[0] < _STRANGE:
        text += ": they belong to something else"
        return confirmed(Fault("dump-other-rows", "dump", (Evidence(text, _named(shares)),), _AGAIN, 0.88, covers=_FOLLOWS))
    return None


_FOLLOWS = ("target-changed", "dump-other-rows", "text-foreign")


def _said(target: Target, sample: RawSample) -> torch.Tensor:
    assert sample.teacher is not None
    state_TH = sample.teacher.float()
    return target.head((state_TH if sample.normed else target.norm(state_TH))[None])[0].argmax(-1)


def _share(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], shift: int) -> float:
    """How often the first of two [T] at row t is the second at t + shift, but for the rows that a shift brings round."""
    hits = total = 0
    for stored_T, said_T in pairs:
        rows = slice(2, -2) if len(said_T) > 8 else slice(None)
        equal_T = stored_T == said_T.roll(-shift)
        hits, total = hits + int(equal_T[rows].sum()), total + len(equal_T[rows])
    return hits / max(1, total)


def _named(shares: dict[int, float]) -> dict[str, float]:
    return {f"shift {shift:+d}": share for shift, share in shares.items()}
