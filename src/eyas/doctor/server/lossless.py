"""The server's text against the target's: is it the target's own, and if not, which part of the server made it so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.server.asking import Asking
from eyas.doctor.server.judging import Judge, Slip
from eyas.doctor.server.tally import Share, Tally

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_REPORT = "serve the same prompts without speculation: if the difference goes, report this to the engine; if not, it is the served target"
_OTHER_SHARE = 0.1  # of prefill tokens that another target gets wrong, where a quantised copy gets a few
_CONTRADICTED = 0.25  # of places from which a server does not go on as before: ties of bf16 turn fewer


def lossless(exam: Examination) -> Outcome:
    asking = exam.asking
    assert asking is not None
    if exam.loaded_target is None:
        return _against_itself(asking)
    tally = exam.tally
    numbers = _numbers(tally)
    if not tally.lossy:
        others = f", {tally.ties} of them at ties of bf16" if tally.ties else ""
        if tally.other_target:
            return ruled_out("where it differs from the target, its own prefill does, too: no speculation is in that", **numbers)
        return ruled_out(f"{tally.tokens} tokens are the target's own choice{others}", **numbers)
    if tally.by_caches:
        return suspected("the text is not the target's own, by way of the caches", **numbers)
    share = tally.rounds
    where = "also in the first round of an answer" if tally.first.slips else "no place could be singled out"
    text = f"{len(share.slips)} of {share.tokens} tokens are not the target's own, {where}"
    return confirmed(Fault("lossy", "server", (Evidence(text, numbers), *_examples(exam, share)), _REPORT, 0.9, shadow=("batch-variant",)))


def rollback(exam: Examination) -> Outcome:
    if exam.loaded_target is None:
        return untestable(exam.why_no_target)
    tally = exam.tally
    numbers = _numbers(tally)
    if not tally.probed:
        return untestable("the server gives no token ids to go on from")
    if tally.lossy and tally.by_caches:
        text = (
            f"{len(tally.later.slips)} of {tally.later.tokens} tokens are wrong after some rounds, and none of {tally.first.tokens} "
            "in a first round: begun again just before, the answer is right"
        )
        remedy = "refused proposals are not taken back from a cache: report it to the engine; until then serve without the draft"
        evidence = (Evidence(text, numbers), *_examples(exam, tally.later))
        return confirmed(Fault("cache-variant", "server", evidence, remedy, 0.92, shadow=("lossy", "batch-variant", "served-below")))
    return ruled_out(f"{tally.first.tokens} answers begun again inside of others go on as those did", **numbers)


def served_target(exam: Examination) -> Outcome:
    """By the first tokens of answers, which no draft has a part in."""
    if exam.loaded_target is None:
        return untestable(exam.why_no_target)
    tally = exam.tally
    share = tally.prefill
    text = f"{len(share.slips)} of {share.tokens} first tokens, which come from the prefill alone, are not this target's"
    numbers = {"tokens": share.tokens, "slips": len(share.slips)}
    if share.rate > _OTHER_SHARE and tally.other_target:
        remedy = (
            "serve the target that --target names, or give the one that is served; a fine-tuned or updated one needs a draft of its own"
        )
        evidence = (Evidence(text, numbers), *_examples(exam, share))
        return confirmed(Fault("target-changed", "server", evidence, remedy, 0.88, shadow=("served-below", "lossy")))
    if tally.other_target:
        return suspected(f"{text}: so few speak of quantised weights", **numbers)
    return ruled_out(text, **numbers)


def _against_itself(asking: Asking) -> Outcome:
    """Without the target: a probe goes on from inside of an answer, and must say what the answer says there."""
    answers = dict(zip((question.id for question in asking.alone.questions), asking.alone.replies, strict=True))
    wrong, words = 0, ""
    for question, reply in zip(asking.probes.questions, asking.probes.replies, strict=True):
        name, _, place = question.id.rpartition("+")
        before, now = (answers[name].tokens or ())[int(place) :], reply.tokens or ()
        parted = next((step for step, (said, says) in enumerate(zip(before, now, strict=False)) if said != says), None)
        if parted is not None:
            wrong += 1
            words = (
                words or f": prompt {name}, token {int(place) + parted}: {before[parted]} in the answer, {now[parted]} asked from {place}"
            )
    count = len(asking.probes.replies)
    text = f"asked from {count} places inside of its answers, the server goes on otherwise from {wrong}{words}"
    if wrong > _CONTRADICTED * count:
        return confirmed(Fault("lossy", "server", (Evidence(text, {"places": count, "differ": wrong}),), _REPORT, 0.85))
    if wrong:
        return suspected(f"{text}; --target would tell ties of bf16 from faults", places=count, differ=wrong)
    return ruled_out(f"asked from {count} places inside of its answers, the server goes on as before", places=count)


def _examples(exam: Examination, share: Share) -> tuple[Evidence, ...]:
    judge: Judge = exam.judge
    worst: list[Slip] = sorted(share.slips, key=lambda slip: -slip.gap)
    return tuple(Evidence(judge.words(slip), {"gap": slip.gap}) for slip in worst[:2])


def _numbers(tally: Tally) -> dict[str, object]:
    shares = {"prefill": tally.prefill, "first_round": tally.first, "later": tally.later}
    counts = {name: f"{len(share.slips)} of {share.tokens} ({percent(share.rate)})" for name, share in shares.items()}
    return {**counts, "ties": tally.ties}
