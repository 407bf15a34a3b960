"""D: token, state, label and mask, each against the others; and the steps after the first."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out
from eyas.wiring import PAIRING


def _stated(exam: Examination) -> Outcome:
    faults = []
    for name, wiring in (("draft", exam.draft.said if exam.draft else {}), ("dump", exam.dump.wiring if exam.dump else {})):
        pairing = wiring.get("pairing")
        if isinstance(pairing, str) and pairing != PAIRING:
            text = f"the {name} was made with {pairing!r}; drafts are served with {PAIRING!r}"
            faults.append(Fault("pair-shift", name, (Evidence(text),), "capture again with this version, and train on that dump", 0.75))
    return confirmed(*faults) if faults else ruled_out("no record states another pairing of state and token")


def _pair(exam: Examination) -> Outcome:
    from eyas.doctor.replay.shifts import try_pairs

    return try_pairs(exam)


def _label(exam: Examination) -> Outcome:
    from eyas.doctor.replay.shifts import try_labels

    return try_labels(exam)


def _step(exam: Examination) -> Outcome:
    from eyas.doctor.replay.shifts import try_steps

    return try_steps(exam)


def _leak(exam: Examination) -> Outcome:
    from eyas.doctor.replay.shifts import try_leak

    return try_leak(exam)


def _dump_labels(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_labels import check_labels

    return check_labels(exam)


def _dump_tokens(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_labels import check_tokens

    return check_tokens(exam)


def _mask(exam: Examination) -> Outcome:
    from eyas.doctor.replay.dump_mask import check_mask

    return check_mask(exam)


HYPOTHESES = (
    Hypothesis(
        "pair-shift",
        "static",
        "dump or draft were made with another pairing of state and token",
        (),
        "read their records",
        "the pairing differs",
        _stated,
        prior=0.1,
    ),
    Hypothesis(
        "label-shift",
        "replay",
        "the dump's labels are not those of its states: shifted, from another layer, or normed wrongly",
        ("samples", "target"),
        "send the labels' state through the target's head, as stored, shifted, and with another norm",
        "another reading gives the stored tokens",
        _dump_labels,
        prior=0.4,
        seconds=1.0,
    ),
    Hypothesis(
        "pair-shift",
        "replay",
        "the dump's tokens and states are shifted against each other",
        ("samples",),
        "compare the target's own next tokens with the text, shifted by -2 to 2",
        "they agree under a shift",
        _dump_tokens,
        prior=0.4,
        seconds=0.5,
    ),
    Hypothesis(
        "mask-shift",
        "replay",
        "the loss mask is shifted against the answers, or marks something else",
        ("samples", "target"),
        "find the answers by the template's own marks and compare",
        "the mask begins and ends beside them",
        _mask,
        prior=0.3,
        seconds=0.1,  # and before all others, which look at answers
    ),
    Hypothesis(
        "pair-shift",
        "replay",
        "the draft was trained on rows whose token and state are shifted",
        ("draft", "replay"),
        "feed states and tokens shifted by -2 to 2 and measure",
        "accuracy rises under a shift",
        _pair,
        prior=0.3,
        seconds=2.0,
    ),
    Hypothesis(
        "label-shift",
        "replay",
        "the draft was trained to predict another position",
        ("draft", "replay"),
        "compare its proposals with the tokens one or two positions away",
        "they agree there more",
        _label,
        prior=0.02,
        seconds=0.5,
        last=True,
    ),
    Hypothesis(
        "mask-leak",
        "replay",
        "in training, rows saw what stands behind them",
        ("draft", "replay"),
        "let each row see the next one, and all of its text, and measure",
        "accuracy rises far",
        _leak,
        prior=0.2,
        seconds=0.2,
    ),
    Hypothesis(
        "step-shift",
        "replay",
        "later steps stand at another position than in training",
        ("draft", "replay"),
        "run step 1 at other positions, tokens and visible rows, and measure",
        "step 1 gets better",
        _step,
        prior=0.2,
        seconds=1.0,
    ),
)
