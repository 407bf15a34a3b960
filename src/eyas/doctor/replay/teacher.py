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
_FEW = 300  # rows on which all states are asked: the target's whole head is large


@torch.no_grad()
def learnt_teacher(exam: Examination) -> Outcome:
    """Cannot be mended without training, so nothing is applied."""
    bench = bench_of(exam)
    result = bench.results(bench.subject)[0]
    said_N = bench.subject.ids[result.rows]
    agreements: dict[str, float] = {}
    best_hits, some = result.hits, slice(0, None, max(1, len(said_N) // _FEW))
    for place, tap in enumerate(bench.evidence.taps):
        if tap.is_final or tap.boundary in (0, bench.target.num_layers):  # the embedding says the token that was read
            continue
        agreements[str(tap)] = float((said_N[some] == _said(bench, place, some)).float().mean())
    best = max(agreements, key=lambda tap: agreements[tap], default="")
    if best and agreements[best] > float(result.hits[some].float().mean()):  # the nearest alone is asked on all rows
        places = [str(tap) for tap in bench.evidence.taps]
        best_hits = said_N == _said(bench, places.index(best), slice(None))
        agreements[best] = float(best_hits.float().mean())
    numbers = {"target": result.accuracy, **agreements}
    if best and agreements[best] >= max(_LEAST, result.accuracy + _CLEAR) and p_value(best_hits, result.hits) <= 1e-4:
        text = (
            f"its proposals agree with {best} read through the target's head on {percent(agreements[best])} of {len(result.hits)} rows, "
            f"with the target's own tokens on {percent(result.accuracy)}: its labels came from there"
        )
        remedy = "capture again with --teacher final and train on that dump; wrong labels cannot be mended afterwards"
        return confirmed(Fault("teacher-layer", "draft", (Evidence(text, numbers),), remedy, 0.92, shadow=unmended(exam)))
    return ruled_out(f"it agrees with the target on {percent(result.accuracy)} of the rows, and with no inner layer more often", **numbers)


def _said(bench: Bench, place: int, some: slice) -> torch.Tensor:
    """What the state would say at the label positions of some of the N rows."""
    found = []
    for batch in bench.evidence.first:
        state_BTH = batch.states[place]
        at_BR = (batch.row_BR + 1).clamp(max=state_BTH.shape[1] - 1)
        rows_NH = state_BTH.gather(1, at_BR[:, :, None].expand(-1, -1, state_BTH.shape[-1]))[batch.valid_BR]
        found.append(rows_NH)
    return torch.cat([bench.target.head(bench.target.norm(rows)[None])[0].argmax(-1) for rows in torch.cat(found)[some].split(512)])
