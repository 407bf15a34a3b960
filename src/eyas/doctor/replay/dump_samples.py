"""Single samples whose states are not those of their own texts, as after a request that overtook another one.

What a slot holds is judged over all rows together, which a few samples do not move. So here each is asked by itself.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import torch

from eyas.capture.forward import capture_batch
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed
from eyas.doctor.replay.samples import RawSample
from eyas.evaluate.answers import spread
from eyas.taps import Tap
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MOST, _TOKENS = 96, 4096
_NEAR, _FAR = 0.1, 0.4  # distances of states from those of their text: as rounding and quantising leave them, and of other texts
_FAR_ROWS = 0.25  # of a sample
_FEWEST, _TOGETHER = 5, 8
_AGAIN = "capture these samples again, one request at a time, and compare: eyas capture takes each text's own states"


def strange_states(exam: Examination) -> Outcome | None:
    """None if every sample asked has its own states, if most have not (which is another fault), or if nothing tells."""
    target = exam.loaded_target
    if target is None:
        return None
    shares = _shares_of_far_rows(target, exam.samples)
    bad = [name for name, (_, far) in shares.items() if far > _FAR_ROWS]
    usual = median(distance for distance, _ in shares.values()) if shares else 1.0
    if len(shares) < _FEWEST or not bad or usual > _NEAR or len(bad) > 0.5 * len(shares):
        return None
    distance, far = shares[bad[0]]
    text = f"{len(bad)} of {len(shares)} samples, such as {bad[0]}, hold states that are not those of their own tokens"
    text += f" ({100 * far:.0f} % of its rows are far, at a median distance of {distance:.2g}; usual is {usual:.2g})"
    numbers = {"samples": len(shares), "odd": len(bad), "distance": distance, "usual": usual}
    return confirmed(Fault("dump-other-rows", "dump", (Evidence(text, numbers),), _AGAIN, 0.83))


@torch.no_grad()
def _shares_of_far_rows(target: Target, samples: tuple[RawSample, ...]) -> dict[str, tuple[float, float]]:
    """By sample: the median distance of its rows from its own text's states, and the share of rows that are far."""
    usable = [one for one in samples if one.taps and len(one.token_ids) > 8 and _fits(target, one)]
    chosen: list[RawSample] = []
    tokens = 0
    for sample in spread(usable, _MOST):
        if tokens < _TOKENS or len(chosen) < _FEWEST:
            chosen.append(sample)
            tokens += len(sample.token_ids)
    chosen.sort(key=lambda sample: len(sample.token_ids))
    found: dict[str, tuple[float, float]] = {}
    for start in range(0, len(chosen), _TOGETHER):
        group = chosen[start : start + _TOGETHER]
        taps = tuple(Tap.parse(tap) for tap in group[0].taps or ())
        captured = capture_batch(target, [sample.token_ids.tolist() for sample in group], taps, want_top1=False)
        for sample, item in zip(group, captured, strict=True):
            own_TW = item.states.float()
            error_T = (sample.states.float() - own_TW).norm(dim=-1) / own_TW.norm(dim=-1).clamp_min(1e-9)
            error_T = error_T[4:].nan_to_num(nan=9.0)
            found[sample.id] = (float(error_T.median()), float((error_T > _FAR).float().mean()))
    return found


def _fits(target: Target, sample: RawSample) -> bool:
    whole = sample.states.shape == (len(sample.token_ids), len(sample.taps or ()) * target.hidden_size)
    return whole and int(sample.token_ids.min()) >= 0 and int(sample.token_ids.max()) < target.vocab_size
