"""What the dump's slots really hold: every one beside every state of the target, or beside the embedding where that is all there is.

Shapes: T positions, H hidden size, N rows of several samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from eyas.capture.check import Capture, SlotVerdict, check_captures
from eyas.capture.fingerprint import MIN_POSITIONS
from eyas.capture.forward import capture_batch
from eyas.capture.reference import reference_of_target
from eyas.capture.rounding import look_at
from eyas.capture.trace import Trace
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, Slot, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.replay.identity import read_traces
from eyas.doctor.replay.samples import RawSample
from eyas.doctor.replay.taps import code_of
from eyas.errors import UserError
from eyas.taps import Tap

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.targets.target import Target

_POSITIONS = 3 * MIN_POSITIONS
_QUANTISED = ("int8", "fp8", "int4")
_ROUNDED = 0.4  # distance beyond which no rounding takes a state
_AGAIN = "capture again with Eyas, which takes each state once and whole; training on this dump teaches other states"
# By the verdict on a slot: the code of the fault.
_CODES = {
    "off by one": "taps-shifted",
    "another state": "taps-other",
    "normed": "norm-state",
    "not normed": "norm-state",
    "scaled": "norm-state",
    "partial": "states-partial",
    "ranks differ": "states-partial",
    "embedding not reduced": "states-scattered",
    "rows scattered": "states-scattered",
    "columns scattered": "states-scattered",
    "rows permuted": "dump-other-rows",
    "rows shifted": "pair-shift",
    "rows differ from a position on": "context-lost",
    "some rows differ": "dump-other-rows",
    "not finite": "dump-not-finite",
}


def read_slots(exam: Examination) -> tuple[SlotVerdict, ...] | str:
    """Over some of the samples; in words, why it cannot be said."""
    target = exam.loaded_target
    assert target is not None
    probes = _probes(exam, target)
    if sum(len(probe.token_ids) for probe in probes) < MIN_POSITIONS:
        return f"fewer than {MIN_POSITIONS} positions of the dump can be compared"
    taps = probes[0].taps
    try:
        slots = _verdicts(target, probes, None if taps is None else tuple(Tap.parse(tap) for tap in taps))
    except UserError as error:
        return " ".join(str(error).split())
    return _as_near_as_rounded(exam, target, slots)


def _as_near_as_rounded(exam: Examination, target: Target, slots: tuple[SlotVerdict, ...]) -> tuple[SlotVerdict, ...]:
    """Between weights and their quantised copy a state lies about as far off as its neighbours do: then it need not be the nearest
    by much, and what is as near as rounding leaves it is found.
    """
    if all(slot.verdict != "unknown" for slot in slots):
        return slots
    made_on = read_traces(exam).get("dump")
    looks = [made_on.look] if isinstance(made_on, Trace) else []
    rounding = next((look.coarsest for look in (*looks, look_at(target)) if look.coarsest in _QUANTISED), None)
    return slots if rounding is None else tuple(_named(slot, rounding) if slot.verdict == "unknown" else slot for slot in slots)


def _named(slot: SlotVerdict, rounding: str) -> SlotVerdict:
    """Of the two nearest states the expected one, else the nearest."""
    detail = f"as near as {rounding} leaves it"
    distances = {slot.next_best_state: slot.next_best, slot.found: slot.distance}
    expected, found = slot.expected, slot.found
    if expected is not None and (distances.get(expected) or 1.0) < _ROUNDED:
        return replace(slot, found=expected, verdict="right", detail=detail)
    if expected is None or found is None or found.startswith("mid:") or (slot.distance or 1.0) >= _ROUNDED:
        return slot
    shifted = code_of((Tap.parse(expected),), (Tap.parse(found),)) == "taps-shifted"
    return replace(slot, verdict="off by one" if shifted else "another state", detail=detail)


def check_slots(exam: Examination) -> Outcome:
    """On some of the samples."""
    target, slots = exam.loaded_target, exam.slot_verdicts
    assert target is not None
    if isinstance(slots, str):
        return untestable(slots)
    exam.measured["dump_slots"] = [slot.text() for slot in slots]
    if exam.draft is None:
        exam.slots = tuple(Slot(slot.slot, slot.expected, slot.found) for slot in slots)
    bad = [slot for slot in slots if not slot.ok]
    if not bad:
        return ruled_out("; ".join(slot.text() for slot in slots))
    if len(bad) == len(slots) and all(slot.found is None for slot in bad):
        moved = _moved(target, _probes(exam, target))
        if moved is not None:
            return moved
    return _faults(slots, bad)


def check_prefill(exam: Examination) -> Outcome:
    """Was a prefill that ranks share put together again? By the config, and by the rows."""
    target, slots = exam.loaded_target, exam.slot_verdicts
    assert target is not None
    if isinstance(slots, str):
        return untestable(slots)
    top = getattr(target.config, "index_topk", None)
    sparse = "the target has no sparse attention: its config names no index_topk"
    if top is not None:
        sparse = f"the target has a sparse attention (index_topk {top}), for which servers split a prefill"
    guilty = [slot for slot in slots if _code(slot) in ("context-lost", "states-scattered") and "rows" in slot.verdict]
    faults = [
        Fault(_code(slot), "dump", (Evidence(f"{slot.text()}; {sparse}", {"index_topk": top}),), _AGAIN, 0.91, covers=_FOLLOWS)
        for slot in guilty
    ]
    if faults:
        return confirmed(*faults)
    known = [slot for slot in slots if slot.found is not None and "rows" not in slot.verdict]
    if not known:
        return suspected(f"no slot holds a state in its own rows, so what ranks made of them is not known; {sparse}", index_topk=top)
    worst = max(slot.distance or 0.0 for slot in known)
    text = f"the rows of {len(known)} of {len(slots)} slots stand in the text's order and saw their context, to a distance of {worst:.2g}"
    return ruled_out(f"{sparse}; {text}", index_topk=top, distance=worst)


def _faults(slots: Sequence[SlotVerdict], bad: Sequence[SlotVerdict]) -> Outcome:
    found, expected = [slot.found for slot in slots], [slot.expected for slot in slots]
    if None not in found and sorted(map(str, found)) == sorted(map(str, expected)) and found != expected:
        evidence = tuple(Evidence(slot.text()) for slot in bad)
        return confirmed(
            Fault(
                "slot-order",
                "dump",
                evidence,
                f"name the slots as they are: {', '.join(map(str, found))}",
                0.93,
                verified=True,
                covers=_FOLLOWS,
            )
        )
    codes = {slot.slot: _code(slot) for slot in bad}
    if "states-partial" in codes.values():  # behind the embedding, which is short, a share of the first layer looks like a scale
        unclear = {slot.slot for slot in bad if codes[slot.slot] == "norm-state" or slot.verdict == "unknown"}  # or like nothing
        codes = {number: "states-partial" if number in unclear else code for number, code in codes.items()}
    faults = [
        Fault(
            codes[slot.slot],
            "dump",
            (Evidence(slot.text(), {"distance": slot.distance, "next_best": slot.next_best}),),
            _AGAIN,
            0.9,
            covers=_FOLLOWS,
        )
        for slot in bad
    ]
    return confirmed(*faults)


_FOLLOWS = ("text-foreign",)


def _code(slot: SlotVerdict) -> str:
    if slot.verdict == "rows permuted" and " ranks" in slot.detail:
        return "states-scattered"  # all rows are there, in the order of ranks
    return _CODES.get(slot.verdict, "dump-other-rows")


def _verdicts(target: Target, probes: Sequence[RawSample], taps: tuple[Tap, ...] | None) -> tuple[SlotVerdict, ...]:
    width = target.hidden_size
    count = probes[0].states.shape[1] // width if probes[0].states.shape[1] % width == 0 else len(taps or ()) or 1
    ids = tuple(tuple(probe.token_ids.tolist()) for probe in probes)
    capture = Capture(ids, tuple(probe.states.float().unflatten(1, (count, -1)) for probe in probes), "the dump")
    reference = reference_of_target(target, capture.token_ids, capture.width)
    return check_captures(reference, [capture], taps if taps is not None and len(taps) <= count else None).slots


def _probes(exam: Examination, target: Target) -> list[RawSample]:
    """Long samples first: few forwards give many positions."""
    usable = [
        sample
        for sample in exam.samples
        if len(sample.token_ids) and int(sample.token_ids.min()) >= 0 and int(sample.token_ids.max()) < target.vocab_size
    ]
    shapes = [sample.states.shape[1] for sample in usable]
    usable = [sample for sample in usable if sample.states.shape[1] == max(set(shapes), key=shapes.count) and sample.states.numel()]
    usable.sort(key=lambda sample: -len(sample.token_ids))
    chosen: list[RawSample] = []
    for sample in usable[:: max(1, len(usable) // 16)] if len(usable) > 32 else usable:
        chosen.append(sample)
        if sum(len(one.token_ids) for one in chosen) >= _POSITIONS:
            break
    return chosen


def _moved(target: Target, probes: Sequence[RawSample]) -> Outcome | None:
    """All rows shifted by one or two, so that no slot is a state in its own place."""
    for shift in (-1, 1, -2, 2):
        moved = [replace(probe, states=_cut(probe.states, shift), token_ids=_cut(probe.token_ids, 0)) for probe in probes]
        errors = []
        for probe, other in zip(probes, moved, strict=True):
            taps = tuple(Tap.parse(tap) for tap in probe.taps or ())
            if not taps:
                return None
            own = capture_batch(target, [probe.token_ids.tolist()], taps, want_top1=False)[0].states
            rows = slice(4, len(own) - 2)
            errors.append(((other.states[rows] - own[rows]).norm(dim=-1) / own[rows].norm(dim=-1).clamp_min(1e-9)).median())
        if float(torch.stack(errors).median()) < 0.1:
            where = "later" if shift > 0 else "earlier"
            text = f"every slot is right {abs(shift)} row(s) {where} than it should stand"
            return confirmed(Fault("pair-shift", "dump", (Evidence(text, {"shift": shift}),), _AGAIN, 0.94, verified=True, covers=_FOLLOWS))
    return None


def _cut(rows: torch.Tensor, shift: int) -> torch.Tensor:
    return rows.roll(-shift, dims=0).float() if rows.is_floating_point() else rows


@torch.no_grad()
def check_embedding_slot(exam: Examination) -> Outcome:
    """Every row of every sample, where the embedding is among the slots: nothing but a table is needed."""
    parts = exam.parts
    if parts is None:
        return untestable("the target's embedding cannot be read")
    errors = {shift: _embedding_errors(exam, parts, exam.samples, shift) for shift in (0, -1, 1, -2, 2)}
    if not len(errors[0]):
        return untestable("the embedding is not among the dump's slots")
    good = {shift: float((error < 0.1).float().mean()) for shift, error in errors.items()}
    best = max(good, key=lambda shift: good[shift])
    numbers = {f"shift {shift:+d}": share for shift, share in good.items()}
    if good[0] > 0.98:
        return ruled_out(f"the embedding's slot is the embedding of its token on {percent(good[0])} of the rows", **numbers)
    if best != 0 and good[best] > 0.8:
        text = f"the embedding's slot is that of the token {best:+d} on {percent(good[best])} of the rows, of its own on {percent(good[0])}"
        return confirmed(Fault("pair-shift", "dump", (Evidence(text, numbers),), _AGAIN, 0.94, verified=True, covers=_FOLLOWS))
    text = f"the embedding's slot is the embedding of its token on {percent(good[0])} of the rows only"
    if good[0] > 0.3:
        return confirmed(Fault("dump-other-rows", "dump", (Evidence(text, numbers),), _AGAIN, 0.85, covers=_FOLLOWS))
    return suspected(text, **numbers)


def _embedding_errors(exam: Examination, parts: Target, samples: Sequence[RawSample], shift: int) -> torch.Tensor:
    found = [torch.zeros(0)]
    for sample in samples:
        slot = next((number for number, tap in enumerate(sample.taps or ()) if tap == "embed"), None)
        ids = sample.token_ids
        whole = sample.states.shape[1] == len(sample.taps or ()) * parts.hidden_size and len(sample.states) == len(ids)
        if slot is None or not whole or int(ids.min()) < 0 or int(ids.max()) >= parts.vocab_size or len(ids) < 6:
            continue
        state = sample.states[:, slot * parts.hidden_size : (slot + 1) * parts.hidden_size].float()
        own = parts.embed(ids[None])[0].float().roll(-shift, dims=0)
        rows = slice(2, len(ids) - 2)
        found.append((state[rows] - own[rows]).norm(dim=-1) / own[rows].norm(dim=-1).clamp_min(1e-9))
    return torch.nan_to_num(torch.cat(found), nan=9.0)


def tokens_fit(exam: Examination, samples: Sequence[RawSample]) -> bool:
    """Whether states stand beside their own tokens."""
    parts = exam.parts
    if parts is not None:
        errors = _embedding_errors(exam, parts, samples[:16], 0)
        if len(errors):
            return float((errors < 0.1).float().mean()) > 0.8
    target = exam.loaded_target
    if target is None:
        return False
    for sample in samples[:4]:
        taps = tuple(Tap.parse(tap) for tap in sample.taps or ())
        if taps and sample.states.shape == (len(sample.token_ids), len(taps) * target.hidden_size):
            own = capture_batch(target, [sample.token_ids.tolist()], taps, want_top1=False)[0].states[4:]
            error = (sample.states.float()[4:] - own).norm(dim=-1) / own.norm(dim=-1).clamp_min(1e-9)
            if float(error.median()) > 0.1:
                return False
    return True
