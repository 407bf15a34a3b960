"""What this draft and target give, by a walk over the target's own text, beside what a server reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.readings import Interval
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import bench_of
from eyas.doctor.reported import given_readings
from eyas.engine.engine import Engine
from eyas.engine.request import SamplingParams
from eyas.evaluate.acceptance import Acceptance, acceptance
from eyas.evaluate.answers import Answer, Prompt, max_length, spread
from eyas.evaluate.forecast import forecast
from eyas.evaluate.settings import Pair
from eyas.evaluate.walk import walk

if TYPE_CHECKING:
    from eyas.capture.plan import Text
    from eyas.doctor.examination import Examination
    from eyas.targets.target import Target

_ANSWERS, _BATCH, _NEW_TOKENS = 64, 16, 96
_BELOW = 0.8  # of the drafts a round that the walk gives, below which the server loses some
_WARM = 1.0  # the temperature of most defaults: above it hardly anybody samples


def compare_served(exam: Examination) -> Outcome:
    """By what the draft gives as it came: what its own faults explain, the server has no part in."""
    bench = bench_of(exam)
    found = [reading for reading in given_readings(exam) if reading.acceptance_length is not None and not reading.oddities]
    if not found:
        return untestable("no length of acceptance is reported that could be compared")
    reading = found[0]
    count, temperature = reading.num_draft_tokens, exam.options.temperature
    if count is None:
        return untestable("the figures do not say K, the drafts a round: give it with --num-draft-tokens")
    expected = predicted(exam, bench.given, count, temperature or 0.0)
    if expected is None:
        return untestable("no walk can be made: the target's layers are not there, or the texts hold no answers")
    exam.measured["expected"] = expected.to_json()
    served = reading.acceptance_length
    assert served is not None
    wanted, low = expected.vllm_acceptance_length, expected.confidence_interval[0]
    numbers = {"expected": wanted, "expected_low": low, "served": served.value, "served_high": served.high}
    warm = f", sampled at temperature {temperature:g}" if temperature else ""
    reported = served.high if served.value is None else served.value
    text = f"{reading.engine} reports {reported:.2f} tokens a round; this draft on this target gives {wanted:.2f} (K = {count}{warm})"
    if served.high - 1 < _BELOW * (low - 1):
        unsaid = _if_sampled(exam, bench.given, count, served) if temperature is None else None
        if unsaid is not None:
            return untestable(f"{text} on its greedy answers, and {unsaid}")
        remedy = (
            "the loss is inside of the server: capture what it feeds the draft and compare (eyas trace check); then batch, caches, ranks"
        )
        return confirmed(Fault("served-below", "server", (Evidence(text, numbers),), remedy, 0.8))
    if served.low > wanted + 0.3:
        return suspected(text + ": other texts, or another draft", **numbers)
    return ruled_out(text, **numbers)


def _if_sampled(exam: Examination, subject: Subject, num_draft_tokens: int, served: Interval) -> str | None:
    """Nobody told how the figures came about: in words, if they are no less than a server that samples gives."""
    warm = predicted(exam, subject, num_draft_tokens, _WARM)
    if warm is None or served.high < warm.confidence_interval[0]:
        return None
    length = f"{warm.vllm_acceptance_length:.2f} on answers sampled at temperature {_WARM:g}"
    return f"{length}: say by --temperature which of them the figures are of, 0 for greedy ones"


def predicted(exam: Examination, subject: Subject, num_draft_tokens: int, temperature: float = 0.0) -> Acceptance | None:
    """Acceptance by a walk; None without the target's layers.

    At a temperature the walk is over answers that the target sampled at it. Engines propose the draft's first choice d, and
    keep it with the probability p(d) that the target gives it: just as often as a sampled text has d there.
    """
    target = exam.loaded_target
    if target is None or subject.shift or subject.ahead or subject.normed:
        return None
    answers = [answer for text in exam.texts if (answer := _answer(text)) is not None]
    if not answers:
        return None
    pair = Pair(target, subject.build(target), subject.taps)
    chosen = spread(answers, _ANSWERS)
    if temperature > 0:
        chosen = _sampled(target, [answer.prompt for answer in chosen], temperature)
    forecasts = forecast(pair, chosen, num_draft_tokens, _BATCH, lambda count: None)
    most = max(len(answer.tokens) for answer in chosen) + num_draft_tokens + 2
    rounds = [walk(answer.tokens, item.hits_RK.tolist(), num_draft_tokens, most) for answer, item in zip(chosen, forecasts, strict=True)]
    return acceptance(rounds, num_draft_tokens)


def _sampled(target: Target, prompts: list[Prompt], temperature: float) -> list[Answer]:
    params = SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=temperature, seed=1)
    with Engine(target, max_batch=_BATCH, max_length=max_length(prompts, _NEW_TOKENS)) as engine:
        outputs = engine.generate([prompt.token_ids for prompt in prompts], params)
    return [Answer(prompt, output.tokens, output.finish_reason, False) for prompt, output in zip(prompts, outputs, strict=True)]


def _answer(text: Text) -> Answer | None:
    """The text's first answer behind all that stands before it."""
    mask = text.loss_mask
    start = next((place for place, own in enumerate(mask) if own), None)
    if start is None or start == 0:
        return None
    end = next((place for place in range(start, len(mask)) if not mask[place]), len(mask))
    if end - start < 3:
        return None
    prompt = Prompt(text.id, "", tuple(text.token_ids[:start]))
    return Answer(prompt, tuple(text.token_ids[start:end]), "stop", False)
