"""The loss mask beside the answers, which the template's own marks show: what opens a turn of the assistant, and what ends it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, suspected, untestable
from eyas.errors import UserError
from eyas.targets.loading import load_stop_ids

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.samples import RawSample

_APART = 0.25  # between the shares of answers and of all else: less tells nothing apart
_REACH = 4  # positions beside an answer in which its mask is looked for
_PIECES = 4  # of a mask, to an answer: rules that mark answers, with their headers or questions or without, leave one or two
_PREPARE = "prepare the chats again with Eyas (eyas data prepare --show 3 prints tokens and mask), and train on that"
Span = tuple[int, int]


def check_mask(exam: Examination) -> Outcome:
    """Rules differ lawfully in an answer's first or last token; a mask that is off at both ends is shifted."""
    samples = [sample for sample in exam.samples if len(sample.loss_mask) == len(sample.token_ids)]
    if not samples:
        return untestable("the dump has no mask of the length of its texts")
    marked = sum(int(sample.loss_mask.sum()) for sample in samples)
    total = sum(len(sample.token_ids) for sample in samples)
    if marked == 0:
        text = f"none of {total} tokens is marked as an answer's: nothing is trained or scored"
        _mend(exam, *marks_of(exam))
        return confirmed(Fault("mask-rule", "dump", (Evidence(text),), _PREPARE, 0.9, covers=("text-foreign",)))
    if exam.dump is not None and not exam.dump.is_eyas and marked == total:
        _mend(exam, *marks_of(exam))
        return untestable("the dump brings no mask")
    header, stops = marks_of(exam)
    if header is None or not stops:
        return untestable("the target's template does not show where an answer begins and ends")
    spans = [(sample, span) for sample in samples for span in answers(sample.token_ids.tolist(), header, stops)]
    if len(spans) < 5:
        return untestable("the template's mark of an answer is not found in these texts")
    outcome = _judge(samples, spans, marked)
    if outcome.faults:
        _mend(exam, header, stops)
    return outcome


def _mend(exam: Examination, header: list[int] | None, stops: frozenset[int]) -> None:
    """In memory, so that the tests behind this one look at answers: the mask that the template's own marks give."""
    if header is None or not stops:
        return
    mended = []
    for sample in exam.samples:
        mask = torch.zeros_like(sample.token_ids, dtype=torch.bool)
        for start, end in answers(sample.token_ids.tolist(), header, stops):
            mask[start : end + 1] = True
        mended.append(dataclasses.replace(sample, loss_mask=mask) if bool(mask.any()) else sample)
    exam.samples = tuple(mended)


def _judge(samples: Sequence[RawSample], spans: Sequence[tuple[RawSample, Span]], marked: int) -> Outcome:
    inside = sum(int(sample.loss_mask[start : end + 1].sum()) for sample, (start, end) in spans)
    length = sum(end - start + 1 for _, (start, end) in spans)
    tokens = sum(len(sample.token_ids) for sample in samples)
    beside = (marked - inside) / max(1, tokens - length)
    offsets = Counter(_offset(sample.loss_mask, span) for sample, span in spans)
    (first, last), count = offsets.most_common(1)[0]
    numbers: dict[str, Any] = {"inside": inside / length, "outside": beside, "first": first, "last": last, "share": count / len(spans)}
    covers = ("text-foreign",)
    if first is not None and first == last != 0 and count > 0.6 * len(spans):
        where = "after" if first > 0 else "before"
        text = f"the mask begins and ends {abs(first)} token(s) {where} the answer in {count} of {len(spans)} answers"
        remedy = f"move the mask by {-first:+d}; or prepare the chats again with Eyas"
        return confirmed(Fault("mask-shift", "dump", (Evidence(text, numbers),), remedy, 0.9, covers=covers))
    if inside / length < 0.3 or beside > 0.6 or inside / length - beside < _APART:
        text = f"{percent(inside / length)} of the answers' tokens are marked, and {percent(beside)} of all others"
        return confirmed(Fault("mask-rule", "dump", (Evidence(text, numbers),), _PREPARE, 0.88, covers=covers))
    marked_samples = {id(sample): sample for sample, _ in spans}.values()
    pieces = sum(_pieces(sample.loss_mask) for sample in marked_samples)
    if pieces > _PIECES * len(spans):
        text = f"the mask is in {pieces} pieces over {len(spans)} answers: it marks single tokens, not answers"
        return confirmed(Fault("mask-rule", "dump", (Evidence(text, {"pieces": pieces, **numbers}),), _PREPARE, 0.86, covers=covers))
    if inside / length < 0.7 or beside > 0.2:
        return suspected(f"{percent(inside / length)} of the answers' tokens are marked, and {percent(beside)} of all others", **numbers)
    return ruled_out(f"{percent(inside / length)} of the answers' tokens are marked, and {percent(beside)} of all others", **numbers)


def _pieces(mask_T: torch.Tensor) -> int:
    """How many runs of marked tokens there are."""
    return int(mask_T[:1].sum()) + int((mask_T[1:] & ~mask_T[:-1]).sum())


def _offset(mask: torch.Tensor, span: Span) -> tuple[int | None, int | None]:
    """Where the mask begins and ends, against the answer; None where there is none near it."""
    low = max(0, span[0] - _REACH)
    near = mask[low : span[1] + _REACH + 1].nonzero().flatten()
    if not len(near):
        return None, None
    first, last = int(near[0]) + low - span[0], int(near[-1]) + low - span[1]
    cut_off = last < first > 1 and span[1] + last == len(mask) - 1  # moved beyond the end of its text; by one only, a rule may do it
    return first, first if cut_off else last


def marks_of(exam: Examination) -> tuple[list[int] | None, frozenset[int]]:
    """The tokens that open an answer, and those that end one."""
    target = exam.parts
    if target is None or target.tokenizer is None or exam.target is None:
        return None, frozenset()
    try:
        stops = frozenset(target.stop_ids or load_stop_ids(str(exam.target.folder), target.tokenizer))
        messages = [{"role": "user", "content": "a"}]
        with_mark = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        without = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    except UserError:
        return None, frozenset()
    except Exception:  # a template raises whatever it likes
        return None, frozenset()
    if not with_mark.startswith(without) or with_mark == without:
        return None, stops
    return target.tokenizer.encode(with_mark[len(without) :], add_special_tokens=False), stops


def answers(ids: Sequence[int], header: Sequence[int], stops: frozenset[int]) -> list[Span]:
    """First and last token of every answer, its stop token included."""
    found, size = [], len(header)
    for start in range(len(ids) - size):
        if list(ids[start : start + size]) == list(header):
            end = next((place for place in range(start + size, len(ids)) if ids[place] in stops), len(ids) - 1)
            if end >= start + size:
                found.append((start + size, end))
    return found
