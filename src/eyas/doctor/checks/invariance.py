"""O, P and Q by the embedded engine: batches, prefilled prompts and rollback must change nothing, and the text is the target's."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Hypothesis, Outcome, untestable


def _embedded(exam: Examination, name: str) -> Outcome:
    if exam.exhibits.engine != "embedded":
        return untestable("--engine embedded runs Eyas's own engine; a server is asked with --server")
    import eyas.doctor.live as live

    return {"batch": live.batches, "cache": live.caches, "lossless": live.lossless, "sampling": live.sampling}[name](exam)


HYPOTHESES = (
    Hypothesis(
        "lossy",
        "live",
        "greedy output is not the target's own",
        ("draft", "target", "layers"),
        "decode some prompts with and without the draft, in fp32",
        "a token differs that is no tie",
        lambda exam: _embedded(exam, "lossless"),
        prior=0.2,
        seconds=4.0,
    ),
    Hypothesis(
        "batch-variant",
        "live",
        "what else is in the batch changes a request",
        ("draft", "target", "layers"),
        "decode prompts alone and together",
        "tokens or rounds differ",
        lambda exam: _embedded(exam, "batch"),
        prior=0.1,
        seconds=4.0,
    ),
    Hypothesis(
        "cache-variant",
        "live",
        "how the caches were filled changes a request",
        ("draft", "target", "layers"),
        "go on from the middle of an answer, with the beginning as a prompt",
        "tokens or rounds differ",
        lambda exam: _embedded(exam, "cache"),
        prior=0.1,
        seconds=4.0,
    ),
    Hypothesis(
        "lossy-sampling",
        "live",
        "sampled tokens are not drawn from the target's distribution",
        ("draft", "target", "layers"),
        "draw one token many times with and without the draft",
        "the counts differ",
        lambda exam: _embedded(exam, "sampling"),
        prior=0.1,
        seconds=4.0,
    ),
)
