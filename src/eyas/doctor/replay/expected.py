"""What this draft and target give, by a walk over the target's own text, beside what a server reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of
from eyas.doctor.reported import readings
from eyas.evaluate.acceptance import Acceptance, acceptance
from eyas.evaluate.answers import Answer, Prompt, spread
from eyas.evaluate.forecast import forecast
from eyas.evaluate.settings import Pair
from eyas.evaluate.walk import walk

if TYPE_CHECKING:
    from eyas.capture.plan import Text
    from eyas.doctor.examination import Examination

_ANSWERS, _BATCH, _K = 64, 16, 3
_BELOW = 0.8  # of the drafts a round that the walk gives, below which the server loses some


def compare_served(exam: Examination) -> Outcome:
    """By what the draft gives as it came: what its own faults explain, the server has no part in."""
    bench = bench_of(exam)
    found = [reading for reading in readings(exam) if reading.acceptance_length is not None and not reading.oddities]
    if not found:
        return untestable("no length of acceptance is reported that could be compared")
    reading = found[0]
    count = reading.num_draft_tokens or _K
    expected = predicted(exam, bench.given, count)
    if expected is None:
        return untestable("no walk can be made: the target's layers are not there, or the texts hold no answers")
    exam.measured["expected"] = expected.to_json()
    served = reading.acceptance_length
    assert served is not None
    wanted, low = expected.vllm_acceptance_length, expected.confidence_interval[0]
    numbers = {"expected": wanted, "expected_low": low, "served": served.value, "served_high": served.high}
    reported = served.high if served.value is None else served.value
    text = f"{reading.engine} reports {reported:.2f} tokens a round; this draft on this target gives {wanted:.2f} (K = {count})"
    if served.high - 1 < _BELOW * (low - 1):
        remedy = (
            "the loss is inside of the server: capture what it feeds the draft and compare (eyas trace check); then batch, caches, ranks"
        )
        return confirmed(Fault("served-below", "server", (Evidence(text, numbers),), remedy, 0.8))
    if served.low > wanted + 0.3:
        return suspected(text + ": other texts, or another draft", **numbers)
    return ruled_out(text, **numbers)


def predicted(exam: Examination, subject: Subject, num_draft_tokens: int) -> Acceptance | None:
    """Acceptance by a walk; None without the target's layers."""
    target = exam.loaded_target
    if target is None or subject.shift or subject.ahead or subject.normed:
        return None
    from eyas.doctor.replay.texts import texts_of

    answers = [answer for text in texts_of(exam, target) if (answer := _answer(text)) is not None]
    if not answers:
        return None
    pair = Pair(target, subject.build(target), subject.taps)
    chosen = spread(answers, _ANSWERS)
    forecasts = forecast(pair, chosen, num_draft_tokens, _BATCH, lambda count: None)
    most = max(len(answer.tokens) for answer in chosen) + num_draft_tokens + 2
    rounds = [walk(answer.tokens, item.hits_RK.tolist(), num_draft_tokens, most) for answer, item in zip(chosen, forecasts, strict=True)]
    return acceptance(rounds, num_draft_tokens)


def _answer(text: Text) -> Answer | None:
    """The text's first answer behind all that stands before it."""
    mask: Sequence[bool] = text.loss_mask
    start = next((place for place, own in enumerate(mask) if own), None)
    if start is None or start == 0:
        return None
    end = next((place for place in range(start, len(mask)) if not mask[place]), len(mask))
    if end - start < 3:
        return None
    prompt = Prompt(text.id, "", tuple(text.token_ids[:start]))
    return Answer(prompt, tuple(text.token_ids[start:end]), "stop", False)
