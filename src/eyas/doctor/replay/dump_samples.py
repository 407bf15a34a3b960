"""Single samples whose states are not those of their own texts, as after a request that overtook another one.

What a slot holds is judged over all rows together, which a few samples do not move. So here each is asked by itself.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_NEAR = 0.1  # distance of states from those of their text, as rounding and quantising leave them
_FAR_ROWS = 0.25  # of a sample
_FEWEST = 5
_AGAIN = "capture these samples again, one request at a time, and compare: eyas capture takes each text's own states"


def strange_states(exam: Examination) -> Outcome | None:
    """None if every sample asked has its own states, if most have not (which is another fault), or if there is no whole target."""
    shares = {exam.samples[run.place].id: run.apart for run in exam.own_runs if run.apart is not None}
    bad = [name for name, (_, far) in shares.items() if far > _FAR_ROWS]
    usual = median(distance for distance, _ in shares.values()) if shares else 1.0
    if len(shares) < _FEWEST or not bad or usual > _NEAR or len(bad) > 0.5 * len(shares):
        return None
    distance, far = shares[bad[0]]
    text = f"{len(bad)} of {len(shares)} samples, such as {bad[0]}, hold states that are not those of their own tokens"
    text += f" ({100 * far:.0f} % of its rows are far, at a median distance of {distance:.2g}; usual is {usual:.2g})"
    numbers = {"samples": len(shares), "odd": len(bad), "distance": distance, "usual": usual}
    return confirmed(Fault("dump-other-rows", "dump", (Evidence(text, numbers),), _AGAIN, 0.83))
