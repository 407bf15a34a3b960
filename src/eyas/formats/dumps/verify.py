"""What a foreign dump holds, by numbers: every slot beside every state of the target, and the labels' state through its head.

Shapes: T positions of a text, n slots, H hidden size, N rows of all probed texts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.capture.check import Capture, SlotVerdict, check_captures
from eyas.capture.fingerprint import SINK_POSITIONS
from eyas.capture.forward import Captured, capture_batch
from eyas.capture.reference import reference_of_target
from eyas.capture.teacher import REQUIRED_SHARE, TeacherCheck, check_teacher
from eyas.errors import UserError
from eyas.formats.dumps.sample import ForeignSample
from eyas.taps import Tap, format_taps
from eyas.targets.target import Target

# By how much of its length a state differs that another engine computed in this dtype; e4m3 rounds a number by so much of itself.
_ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
_EIGHT_BITS = 1 / 16
_STRANGE = 0.1  # a row of another text's is off by about its own length; other kernels and 8 bits stay far below this
_TIMES_USUAL = 4.0


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
    if not all(slot.verdict == "right" for slot in slots):
        raise _refuse_broken(slots, probes[0].first_token_missing, where)
    last_tap = None
    num_slots = probes[0].states.shape[1]
    in_stack = probes[0].last is None and num_slots > 1 and (claimed is None or len(claimed) == num_slots - 1)
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
    norm_last = last_tap is not None and not last_tap.is_final
    check, rounded = TeacherCheck(), 0
    wanted = taps if last_tap is None else (*taps, last_tap)
    for probe in probes:
        captured = capture_batch(target, [probe.token_ids.tolist()], wanted)[0]
        _require_own_states(target, probe, captured.states, slots, where)
        if last_tap is not None:
            counted = _check_teacher(target, probe, captured, last_slot, norm_last)
            check, rounded = check + counted[0], rounded + counted[1]
    if last_tap is not None and (check.wrong > 0 or check.agreeing + rounded < REQUIRED_SHARE * check.checked):
        raise _refuse_labels(check, where)
    return Verified(taps, last_slot, norm_last, None if last_tap is None else check, first_token, slots)


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


def _refuse_broken(slots: Sequence[SlotVerdict], first_token_missing: bool, where: str) -> UserError:
    hint = " (its texts' first token is not stored; those with which the target's own texts begin were tried)"
    return UserError(
        f"{where} does not hold whole states of the target, row by row{hint if first_token_missing else ''}",
        got="\n           ".join(slot.text() for slot in slots),
        remedy="give the target that the dump was made with; if it is this one, mend the capture and make the dump again",
    )


def _refuse_labels(check: TeacherCheck, where: str) -> UserError:
    return UserError(
        f"{where}: the labels' state does not give the target's own tokens",
        got=f"{100 * check.share:.2f} % of {check.checked} rows agree; {check.near_ties} others are near-ties, {check.wrong} are not",
        allowed=f"at least {100 * REQUIRED_SHARE} % of the rows, the rest near-ties",
        remedy="give the target that the dump was made with; if it is this one, make the dump again",
    )


def _require_taps(slots: Sequence[SlotVerdict], claimed: tuple[Tap, ...] | None, where: str) -> tuple[Tap, ...]:
    found = tuple(Tap.parse(str(slot.found)) for slot in slots)
    if claimed is None or found == claimed:
        return found
    if len(claimed) != len(slots):
        raise UserError(f"{where} holds another number of states than claimed", got=len(slots), allowed=format_taps(claimed))
    raise UserError(
        f"{where} does not hold {format_taps(claimed)}",
        got="\n           ".join(slot.text() for slot in slots),
        remedy=f"if this is what the draft is to be trained on: --taps {format_taps(found)}",
    )


def _require_own_states(target: Target, probe: ForeignSample, wanted_TW: torch.Tensor, slots: Sequence[SlotVerdict], where: str) -> None:
    """The verdicts are medians over all texts, which one strange text among them does not move.

    Raises UserError for a text whose rows are mostly not the target's for its tokens.
    """
    held_TnH = (probe.states if probe.last is None else torch.cat([probe.states, probe.last[:, None]], 1)).to(target.device).float()
    wanted_TnH = wanted_TW.float().unflatten(1, (-1, target.hidden_size))
    off_Tn = (held_TnH - wanted_TnH).norm(dim=-1) / wanted_TnH.norm(dim=-1).clamp_min(1e-12)
    start = SINK_POSITIONS if len(off_Tn) > 2 * SINK_POSITIONS else 0
    for slot, off in zip(slots, off_Tn[start:].median(0).values.tolist(), strict=True):
        usual = max(_STRANGE, _TIMES_USUAL * (slot.distance or 0.0))
        if off > usual:
            raise UserError(
                f"{where}: text {probe.id} does not hold the target's states of its own tokens",
                got=f"slot {slot.slot}, {slot.found}: half of its rows differ by {off:.2g} of their length or more",
                allowed=f"{usual:.2g}; in the other texts it is {slot.distance or 0.0:.2g}",
                remedy="its file is of another run, target or text: remove it, or make the dump again",
            )


@torch.no_grad()
def _check_teacher(target: Target, probe: ForeignSample, captured: Captured, last_slot: bool, norm_last: bool) -> tuple[TeacherCheck, int]:
    """Also how many rows prefer another token by rounding alone: their state is the target's own, as well as its dtype can hold it."""
    teacher_TH = teacher_state(target, probe, last_slot, norm_last)
    check = check_teacher(target, teacher_TH, captured.final, captured.top1)
    if check.agreeing == check.checked:
        return check, 0
    off_T = (teacher_TH - captured.final).float().norm(dim=-1) / captured.final.float().norm(dim=-1)
    strange_T = off_T > (_EIGHT_BITS if probe.eight_bit else _ROUNDING.get(probe.states.dtype, 0.0))
    strange = check_teacher(target, teacher_TH[strange_T], captured.final[strange_T], captured.top1[strange_T])
    others = check.checked - check.agreeing
    return replace(check, near_ties=others - strange.wrong, wrong=strange.wrong), others - (strange.checked - strange.agreeing)


@torch.no_grad()
def teacher_state(target: Target, sample: ForeignSample, last_slot: bool, norm_last: bool) -> torch.Tensor:
    """[T, H] as lm_head wants it, on the target's device and in its dtype."""
    last_TH = last_state(sample, last_slot)
    assert last_TH is not None
    last_TH = last_TH.to(target.device, target.dtype)
    return target.norm(last_TH) if norm_last else last_TH
