"""K, O, P, Q, R and S of a running server, asked from outside: its text, its batches and caches, what it counts."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Hypothesis, Outcome


def _lossless(exam: Examination) -> Outcome:
    from eyas.doctor.server.lossless import lossless

    return lossless(exam)


def _rollback(exam: Examination) -> Outcome:
    from eyas.doctor.server.lossless import rollback

    return rollback(exam)


def _target(exam: Examination) -> Outcome:
    from eyas.doctor.server.lossless import served_target

    return served_target(exam)


def _batches(exam: Examination) -> Outcome:
    from eyas.doctor.server.invariance import batches

    return batches(exam)


def _prefix(exam: Examination) -> Outcome:
    from eyas.doctor.server.invariance import prefix_cache

    return prefix_cache(exam)


def _chunks(exam: Examination) -> Outcome:
    from eyas.doctor.server.invariance import chunks

    return chunks(exam)


def _served(exam: Examination) -> Outcome:
    from eyas.doctor.server.served import compare

    return compare(exam)


def _speculates(exam: Examination) -> Outcome:
    from eyas.doctor.server.served import speculates

    return speculates(exam)


def _sampling(exam: Examination) -> Outcome:
    from eyas.doctor.server.sampling import sampling

    return sampling(exam)


def _rendering(exam: Examination) -> Outcome:
    from eyas.doctor.server.rendering import rendering

    return rendering(exam)


HYPOTHESES = (
    Hypothesis(
        "lossy",
        "live",
        "the server's greedy text is not the target's own",
        ("server",),
        "judge every token of its answers by a forward of the target; without a target, ask again from inside of the answers",
        "a token differs that is no tie",
        _lossless,
        prior=0.3,
        seconds=20.0,
    ),
    Hypothesis(
        "target-changed",
        "live",
        "the server serves another target",
        ("server", "layers"),
        "judge the first token of its answers, which the prefill gives",
        "they are not this target's",
        _target,
        prior=0.3,
        seconds=20.0,
    ),
    Hypothesis(
        "cache-variant",
        "live",
        "refused proposals stay in the server's caches",
        ("server", "layers"),
        "begin its answers again from places inside of them",
        "what was wrong is right then",
        _rollback,
        prior=0.2,
        seconds=20.0,
    ),
    Hypothesis(
        "served-below",
        "live",
        "the server accepts less than this draft gives on its answers",
        ("server", "draft", "replay", "layers"),
        "count its drafts while it answers, walk the draft over the same answers, and try the usual wrong wirings",
        "by position, the server lies below the walk",
        _served,
        prior=0.4,
        seconds=30.0,
    ),
    Hypothesis(
        "served-below",
        "live",
        "the server does not speculate at all",
        ("server",),
        "count its rounds while it answers",
        "tokens are counted, and no round",
        _speculates,
        prior=0.4,
        seconds=5.0,
    ),
    Hypothesis(
        "cache-variant",
        "live",
        "the server's prefix cache changes a request",
        ("server",),
        "ask the same prompts twice, and compare answers and acceptance",
        "the second time is another",
        _prefix,
        prior=0.2,
        seconds=15.0,
    ),
    Hypothesis(
        "batch-variant",
        "live",
        "what else is in the server's batch changes a request",
        ("server",),
        "ask prompts one by one, and many at once",
        "answers differ at no tie",
        _batches,
        prior=0.2,
        seconds=20.0,
    ),
    Hypothesis(
        "cache-variant",
        "live",
        "the server loses something between the chunks of a long prompt",
        ("server", "layers"),
        "ask prompts of many chunks, all at once",
        "the answers are not the target's",
        _chunks,
        prior=0.1,
        seconds=20.0,
    ),
    Hypothesis(
        "lossy-sampling",
        "live",
        "the server's sampled tokens do not follow the target's distribution",
        ("server", "layers"),
        "ask at temperature 1, and compare how unlikely its tokens are with the entropy of what the target would draw them from",
        "they are less likely than samples",
        _sampling,
        prior=0.15,
        seconds=25.0,
    ),
    Hypothesis(
        "template-differs",
        "live",
        "the server renders chats otherwise than the target's template",
        ("server", "layers"),
        "compare the token ids, or their number, of a few chats",
        "they differ",
        _rendering,
        prior=0.2,
        seconds=2.0,
    ),
)
