"""L: what a trainer recorded beside the draft. Gradients and data order leave nothing that could be read afterwards."""

from __future__ import annotations

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.later_positions import later_positions
from eyas.doctor.opening.plain import whole
from eyas.doctor.train_course import oddities
from eyas.doctor.train_records import records


def _steps(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    steps = draft.said.get("ttt_steps")
    if steps is None:
        return untestable("nothing records for how many steps the draft was trained")
    if whole(steps) is None:
        text = f"the draft is recorded to be trained for {steps!r} steps of its own output: nothing divides by that"
        return confirmed(Fault("train-steps", "draft", (Evidence(text),), "train it again with --ttt-steps 3 or more", 0.6))
    proposed = _proposed(exam)
    if proposed is not None and proposed > steps:
        text = f"the server proposes {proposed} tokens a round, and the draft was trained for {steps}: later ones are guesses"
        if exam.asking is not None and "live" in exam.options.depths:
            return suspected(f"{text}, if their acceptance falls while it is asked")
        guesses = Fault("train-steps", "draft", (Evidence(text),), f"propose {steps}, or train with --ttt-steps {proposed}", 0.5)
        return later_positions(exam, steps, proposed) or confirmed(guesses)
    return (
        suspected("the draft was trained for one step only: what it feeds back, it never saw in training")
        if steps == 1
        else ruled_out(f"trained for {steps} steps" + (f", of which {proposed} are proposed" if proposed else ""))
    )


def _steps_served(exam: Examination) -> Outcome:
    """The same of a running server, which is asked first: a rate of each position says more than a record."""
    asking, draft = exam.asking, exam.draft
    assert asking is not None
    assert draft is not None
    steps, proposed = whole(draft.said.get("ttt_steps")), asking.num_draft_tokens
    if steps is None or proposed is None:
        return untestable("nothing records the steps of the training" if steps is None else "the server does not show how many it proposes")
    if proposed <= steps:
        return ruled_out(f"trained for {steps} steps, of which {proposed} are proposed")
    _ = asking.together  # the pass with the most rounds
    uncounted = suspected(
        f"{proposed} are proposed, and it was trained for {steps}; too few rounds came to the later positions to judge them"
    )
    return later_positions(exam, steps, proposed) or uncounted


def _proposed(exam: Examination) -> int | None:
    """K of the server, where figures were given."""
    if not {"server", "metrics", "log"} & set(exam.exhibits.given()):
        return None
    from eyas.doctor.reported import draft_tokens

    return draft_tokens(exam)


def _record(exam: Examination) -> Outcome:
    """What a trainer wrote down beside the draft: losses, shares, rates and gradients that went wrong."""
    draft = exam.draft
    assert draft is not None
    found = records(draft.folder)
    problems = [Evidence(f"{name}: {words}") for name, rows in found.items() for words in oddities(rows)]
    if problems:
        return confirmed(Fault("train-record", "draft", tuple(problems[:4]), "train again from the last step before that", 0.5))
    return ruled_out("the trainer's records show nothing odd") if found else untestable("no trainer's record lies beside the draft")


HYPOTHESES = (
    Hypothesis(
        "train-steps",
        "static",
        "the draft proposes more tokens than it was trained for",
        ("draft",),
        "read ttt_steps in the wiring",
        "fewer than are proposed",
        _steps,
        prior=0.15,
    ),
    Hypothesis(
        "train-steps",
        "live",
        "positions that the draft was not trained for are accepted less by the server",
        ("server", "draft"),
        "count the acceptance of each position while it answers",
        "it falls behind the trained ones",
        _steps_served,
        prior=0.1,
        seconds=20.0,
    ),
    Hypothesis(
        "train-record",
        "static",
        "the training went wrong by its own record",
        ("draft",),
        "read losses, shares and rates",
        "NaN, shares above 1, or a jump",
        _record,
        prior=0.1,
    ),
)
