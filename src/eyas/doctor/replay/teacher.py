"""What the draft learnt to say: the target's own tokens, or what an inner layer would have said through the same head.

Legend: B texts, T positions, R rows, N rows that count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out
from eyas.doctor.replay.bench import Bench
from eyas.doctor.replay.trial import bench_of, unmended
from eyas.evaluate.infer.measure import p_value

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_CLEAR = 0.05  # by how much an inner layer must be agreed with more often
_LEAST = 0.25  # agreement that is no chance


@torch.no_grad()
def learnt_teacher(exam: Examination) -> Outcome:
    """Cannot be mended without training, so nothing is applied."""
    bench = bench_of(exam)
    result = bench.results(bench.subject)[0]
    said_N = bench.subject.ids[result.rows]
    agreements: dict[str, float] = {}
    best, best_hits = "", result.hits
    for place, tap in enumerate(bench.evidence.taps):
        if tap.is_final or tap.boundary in (0, bench.target.num_layers):  # the embedding says the token that was read
            continue
        hits = said_N == _said(bench, place)
        agreements[str(tap)] = float(hits.float().mean())
        if hits.float().mean() > best_hits.float().mean():
            best, best_hits = str(tap), hits
    numbers = {"target": result.accuracy, **agreements}
    if best and agreements[best] >= max(_LEAST, result.accuracy + _CLEAR) and p_value(best_hits, result.hits) <= 1e-4:
        text = (
            f"its proposals agree with {best} read through the target's head on {percent(agreements[best])} of {len(result.hits)} rows, "
            f"with the target's own tokens on {percent(result.accuracy)}: its labels came from there"
        )
        remedy = "capture again with --teacher final and train on that dump; wrong labels cannot be mended afterwards"
        return confirmed(Fault("teacher-layer", "draft", (Evidence(text, numbers),), remedy, 0.92, shadow=unmended(exam)))
    return ruled_out(f"it agrees with the target on {percent(result.accuracy)} of the rows, and with no inner layer more often", **numbers)


def _said(bench: Bench, place: int) -> torch.Tensor:
    """What the state would say [N] at each row's label position."""
    found = []
    for batch in bench.evidence.first:
        state_BTH = batch.states[place]
        at_BR = (batch.row_BR + 1).clamp(max=state_BTH.shape[1] - 1)
        rows_NH = state_BTH.gather(1, at_BR[:, :, None].expand(-1, -1, state_BTH.shape[-1]))[batch.valid_BR]
        found += [bench.target.head(bench.target.norm(rows)[None])[0].argmax(-1) for rows in rows_NH.split(512)]
    return torch.cat(found)
