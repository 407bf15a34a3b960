"""From what was tested to the one word, and the sentence behind it."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Finding, Tested, Verdict, percent

_LEAST = 0.35  # first-token accuracy below which a draft that is wired right is called weak
_SERVING = ("lossy", "served-below")  # what must have been tested of a server before it is called healthy
_LATER = 0.5  # of the first step's accuracy; a draft that was trained for one step is wired right, too
_OVER_PAIRS = 0.05  # and by so much it must beat a mere table of which token follows which


def verdict_of(exam: Examination, findings: Sequence[Finding], tested: Sequence[Tested]) -> Verdict:
    """A fault where one was found. Else healthy only if the wiring was proved on real text; weak if it is right and predicts little.

    A test that broke has ruled nothing out: without a fault found elsewhere, nothing is decided. Nor is it where the figures
    or the server that were given could not be tested: the draft alone is proved then.
    """
    if findings:
        return "fault"
    if exam.broken or unserved(exam, tested) is not None:
        return "inconclusive"
    accuracy = exam.measured.get("accuracy")
    if accuracy is None:
        complete = exam.exhibits.draft is None and any(item.outcome.judgement == "ruled out" for item in tested)
        return "healthy" if complete and exam.exhibits.dump is not None else "inconclusive"
    return "weak-draft" if accuracy < max(_LEAST, exam.measured.get("pair_table_accuracy", 0.0) + _OVER_PAIRS) else "healthy"


def proves_nothing(exam: Examination, accuracy: float, share: float = 0.75) -> bool:
    """Whether it is below a share of what a table of which token follows which gives: a draft reaches that whatever it was trained for."""
    return accuracy < share * float(exam.measured.get("pair_table_accuracy", 0.0))


def unserved(exam: Examination, tested: Sequence[Tested]) -> str | None:
    """Why the serving that was given could not be tested; None if it was, or if nothing about it was given."""
    for item in tested:
        needs, outcome = item.hypothesis.needs, item.outcome
        about_serving = item.hypothesis.code in _SERVING and {"server", "figures"} & set(needs)
        if about_serving and outcome.judgement == "cannot be tested" and exam.missing(needs) is None:
            return outcome.reason
    return None


def summary_of(exam: Examination, verdict: Verdict, findings: Sequence[Finding], tested: Sequence[Tested]) -> str:
    accuracy, before = exam.measured.get("accuracy"), exam.measured.get("accuracy_as_given")
    figure = "" if accuracy is None else f" First-token accuracy {percent(accuracy)} on {exam.measured.get('rows')} rows."
    later = exam.measured.get("accuracy_step_1")
    if accuracy is not None and later is not None and later < _LATER * accuracy:
        figure += f" At the next step {percent(later)}: later steps were trained in another way than they are run, or not at all."
    if verdict == "fault":
        words = ""
        if before is not None and accuracy is not None and accuracy > before:
            words = f" With the fixes: {percent(before)} -> {percent(accuracy)}."
        return "; ".join(f"{item.title} ({item.subject})" for item in findings[:3]) + "." + words
    if verdict == "weak-draft" and accuracy is not None and proves_nothing(exam, accuracy):
        table = exam.measured["pair_table_accuracy"]
        words = f"It is right on {percent(accuracy)} of the rows, and a mere table of which token follows which on {percent(table)}"
        return f"Weak: nothing wrong was seen, but it predicts too little for a replay to prove how it is wired. {words}. Train it longer."
    if verdict == "weak-draft":
        return f"Wired right, and weak: more or closer data and longer training are the remedy.{figure}"
    if verdict == "healthy":
        return f"Nothing is wrong.{figure}"
    if exam.broken:
        return f"No fault was found, but {len(exam.broken)} tests broke: {', '.join(sorted(set(exam.broken)))}.{figure}"
    why = unserved(exam, tested)
    if accuracy is not None and why is not None:
        return f"The draft is wired right, but what is served could not be tested: {why}.{figure}"
    return f"No fault was found, but the wiring could not be proved: {_why_unproved(exam)}."


def _why_unproved(exam: Examination) -> str:
    if exam.draft is None:
        return "no draft was given"
    return exam.why_no_bench if "replay" in exam.options.depths else "nothing was replayed, which takes --depth replay"
