"""What a foreign dump holds, by numbers: every slot beside every state of the target, and the labels' state through its head.

Shapes: T positions of a text, n slots, H hidden size, N rows of all probed texts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.capture.check import Capture, SlotVerdict, check_captures
from eyas.capture.fingerprint import MIN_POSITIONS
from eyas.capture.forward import capture_batch
from eyas.capture.reference import reference_of_target
from eyas.capture.teacher import TeacherCheck, check_teacher, refuse_wrong_teacher
from eyas.errors import UserError
from eyas.formats.dumps.sample import ForeignSample
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target

PROBE_POSITIONS = 2 * MIN_POSITIONS


@dataclass(frozen=True)
class Verified:
    """`taps` as claimed, or as found where nothing was claimed. `last_slot`: the labels' state is the last of the stack.

    norm_last: it must still go through the final norm. teacher_check is None where a dump has no such state.
    """

    taps: tuple[Tap, ...]
    last_slot: bool
    norm_last: bool
    teacher_check: TeacherCheck | None
    first_token: int | None
    slots: tuple[SlotVerdict, ...]


def verify(target: Target, probes: Sequence[ForeignSample], claimed: tuple[Tap, ...] | None, where: str) -> Verified:
    """Raises UserError for slots that hold something else than claimed, or a labels' state that is not the target's last one."""
    probes, first_token, slots = _located(target, probes, where)
    last_tap, norm_last = None, False
    num_slots = probes[0].states.shape[1]
    in_stack = probes[0].last is None and (claimed is None or len(claimed) == num_slots - 1)
    if probes[0].last is not None or in_stack:
        last_tap = _last_state(slots[-1], target.num_layers)
    if last_tap is None and probes[0].last is not None:
        raise UserError(
            f"{where}: the labels' state is not the target's last one",
            got=slots[-1].text(),
            allowed=f"layer:{target.num_layers - 1}, or final",
            remedy="labels from another layer are not the target's own tokens: make the dump again with the last layer's output",
        )
    last_slot = in_stack and last_tap is not None
    inputs = slots[:-1] if probes[0].last is not None or last_slot else slots
    taps = _require_taps(inputs, claimed, where)
    check = None
    if last_tap is not None:
        norm_last = not last_tap.is_final
        check = _check_teacher(target, probes, last_slot, norm_last)
        if not check.passed:
            raise refuse_wrong_teacher(check, last_tap, target.num_layers)
    return Verified(taps, last_slot, norm_last, check, first_token, slots)


def last_state(sample: ForeignSample, last_slot: bool) -> torch.Tensor | None:
    return sample.states[:, -1] if last_slot else sample.last


def with_first_token(sample: ForeignSample, token: int | None) -> ForeignSample:
    if not sample.first_token_missing or token is None:
        return sample
    return replace(sample, token_ids=torch.cat([torch.tensor([token]), sample.token_ids[1:]]), first_token_missing=False)


def _located(
    target: Target, probes: Sequence[ForeignSample], where: str
) -> tuple[list[ForeignSample], int | None, tuple[SlotVerdict, ...]]:
    """The verdict on every slot, `last` behind the others; a missing first token is the one with which the states agree."""
    tokens: list[int | None] = list(_first_tokens(target)) if probes[0].first_token_missing else [None]
    tried = []
    for token in tokens:
        complete = [with_first_token(probe, token) for probe in probes]
        captures = Capture(
            tuple(tuple(probe.token_ids.tolist()) for probe in complete),
            tuple(probe.states if probe.last is None else torch.cat([probe.states, probe.last[:, None]], 1) for probe in complete),
            where,
        )
        slots = check_captures(reference_of_target(target, captures.token_ids, captures.width, where), [captures], None).slots
        tried.append((sum(1.0 if slot.distance is None else slot.distance for slot in slots), complete, token, slots))
    _, complete, token, slots = min(tried, key=lambda item: item[0])
    return complete, token, slots


def _first_tokens(target: Target) -> list[int]:
    """With what a text may begin: the tokenizer's own begin, and that of a rendered chat."""
    found = [target.tokenizer.bos_token_id]
    if target.tokenizer.chat_template:
        text = target.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
        found.append(target.tokenizer.encode(text, add_special_tokens=False)[0])
    return list(dict.fromkeys(int(token) for token in found if token is not None)) or [0]


def _last_state(slot: SlotVerdict, num_layers: int) -> Tap | None:
    if slot.verdict == "right" and slot.found in ("final", str(Tap(num_layers))):
        return Tap.parse(str(slot.found))
    return None


def _require_taps(slots: Sequence[SlotVerdict], claimed: tuple[Tap, ...] | None, where: str) -> tuple[Tap, ...]:
    whole = all(slot.verdict == "right" and slot.found is not None for slot in slots)
    found = tuple(Tap.parse(str(slot.found)) for slot in slots) if whole else ()
    if whole and (claimed is None or found == claimed):
        return found
    if claimed is not None and len(claimed) != len(slots):
        raise UserError(f"{where} holds another number of states than claimed", got=len(slots), allowed=format_taps(claimed))
    raise UserError(
        f"{where} does not hold whole states of the target" if claimed is None else f"{where} does not hold {format_taps(claimed)}",
        got="\n           ".join(slot.text() for slot in slots),
        remedy=f"if this is what the draft is to be trained on: --taps {format_taps(found)}" if whole else "make the dump again",
    )


def _check_teacher(target: Target, probes: Sequence[ForeignSample], last_slot: bool, norm_last: bool) -> TeacherCheck:
    check = TeacherCheck()
    for probe in probes:
        captured = capture_batch(target, [probe.token_ids.tolist()], ())[0]
        check += check_teacher(target, teacher_state(target, probe, last_slot, norm_last), captured.final, captured.top1)
    return check


@torch.no_grad()
def teacher_state(target: Target, sample: ForeignSample, last_slot: bool, norm_last: bool) -> torch.Tensor:
    """[T, H] as lm_head wants it, on the target's device and in its dtype."""
    last_TH = last_state(sample, last_slot)
    assert last_TH is not None
    last_TH = last_TH.to(target.device, target.dtype)
    return target.norm(last_TH) if norm_last else last_TH
