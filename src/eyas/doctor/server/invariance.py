"""A request must not depend on its neighbours in the batch, on what is in the prefix cache, or on how its prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.server.asking import Pass
from eyas.doctor.server.client import ServerError
from eyas.doctor.server.counters import FELL_BACK
from eyas.doctor.server.judging import Slip
from eyas.doctor.server.served import accepted_less
from eyas.errors import UserError

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_MANY = 0.5  # of the answers: ties of bf16 do not turn so many


def batches(exam: Examination) -> Outcome:
    asking = exam.asking
    assert asking is not None
    count = len(asking.together.questions)
    alone, together = asking.alone, asking.together
    remedy = "serve one request at a time until the engine's batching is mended (max_num_seqs 1); report this to the engine"
    what = f"asked with {count - 1} others at once"
    return _compared(exam, alone, together, what, "batch-variant", remedy, None)  # the others' acceptance is in the counters, too


def prefix_cache(exam: Examination) -> Outcome:
    """Prompts that are shorter than a block of the cache hit nothing; then long ones are asked twice, too."""
    asking = exam.asking
    assert asking is not None
    found = _asked_twice(exam, asking.alone, asking.again)
    if found.judgement != "ruled out" or asking.again.cached_tokens or exam.loaded_target is None:
        return found
    try:
        long, again = asking.long, asking.long_again
    except ServerError:
        raise
    except UserError:  # there is no room for longer ones
        return found
    return _asked_twice(exam, long, again, at_once=True)


def _asked_twice(exam: Examination, first: Pass, again: Pass, at_once: bool = False) -> Outcome:
    """`at_once`: they were a batch, too, so what a batch explains is no matter of the cache."""
    hits = f"{again.cached_tokens} tokens from its prefix cache" if again.cached_tokens else "no hit of a prefix cache was seen"
    longest = max(len(question.ids or ()) for question in first.questions)
    how = f"asked once more ({hits}{f', prompts of up to {longest} tokens' if longest else ''})"
    remedy = "switch the prefix cache off (vLLM: --no-enable-prefix-caching, SGLang: --disable-radix-cache), and report this to the engine"
    found = _compared(exam, first, again, how, "cache-variant", remedy, accepted_less(first, again))
    return replace(found, faults=tuple(replace(fault, shadow=("batch-variant",)) for fault in found.faults)) if at_once else found


def chunks(exam: Examination) -> Outcome:
    """Long prompts: their answers against the target's own, as there is no shorter way to ask them."""
    asking = exam.asking
    assert asking is not None
    long = asking.long
    lengths = [len(question.ids or ()) for question in long.questions]
    worst = _worst(exam, long)
    what = f"{len(lengths)} prompts of {max(lengths)} tokens, asked at once"
    if worst:
        text = f"{what}: {len(worst)} answers are not the target's: {exam.judge.words(worst[0])}"
        if _worst(exam, asking.alone):
            return suspected(f"{text}; but so are those to short prompts", prompts=len(lengths))
        remedy = "switch chunked prefill off, or raise the tokens of a batch above the prompt's length; report this to the engine"
        fault = Fault("cache-variant", "server", (Evidence(text),), remedy, 0.85, shadow=("batch-variant",))  # they were a batch, too
        return confirmed(fault)
    return ruled_out(f"{what}: the answers are the target's own", prompts=len(lengths), length=max(lengths))


def _compared(exam: Examination, one: Pass, other: Pass, how: str, code: str, remedy: str, less: str | None) -> Outcome:
    """Answers first, then how many drafts were accepted: a cache can spoil the draft alone, and the text stays right."""
    if exam.asking is not None and exam.asking.fell_back:
        return untestable(FELL_BACK)
    pairs = list(zip(one.questions, one.replies, other.replies[: len(one.replies)], strict=True))
    changed = [question.id for question, left, right in pairs if left.said != right.said]
    numbers = {"prompts": len(pairs), "changed": len(changed)}
    if changed:
        text = f"{how}, {len(changed)} of {len(pairs)} prompts are answered otherwise, such as {changed[0]}"
        return _changed(exam, one, other, text, numbers, code, remedy)
    if less is not None:
        text = f"{how}, the answers are the same, but {less}"
        return confirmed(Fault(code, "server", (Evidence(text, numbers),), remedy, 0.86))
    return ruled_out(f"{how}, {len(pairs)} prompts are answered as before", **numbers)


def _changed(exam: Examination, one: Pass, other: Pass, text: str, numbers: dict[str, int], code: str, remedy: str) -> Outcome:
    if exam.loaded_target is None:
        if numbers["changed"] > _MANY * numbers["prompts"]:
            return confirmed(Fault(code, "server", (Evidence(text, numbers),), remedy, 0.85))
        return suspected(f"{text}; --target would tell ties of bf16 from faults", **numbers)
    before, after = _worst(exam, one), _worst(exam, other.first(len(one.questions)))
    if len(after) > len(before):
        evidence = (Evidence(text, numbers), Evidence(exam.judge.words(after[0]), {"wrong_before": len(before), "wrong_after": len(after)}))
        return confirmed(Fault(code, "server", evidence, remedy, 0.9))
    if before:
        return suspected(f"{text}; but the answers were not the target's before", **numbers)
    return ruled_out(f"{text}, each at a tie of bf16", **numbers)


def _worst(exam: Examination, made: Pass) -> Sequence[Slip]:
    """Answers that are not the target's own, the worst place of each."""
    if exam.loaded_target is None:
        raise UserError(exam.why_no_target)
    found = [exam.judge.worst(slips) for slips in exam.judge.slips(made.questions, made.replies)]
    return [slip for slip in found if slip is not None]
