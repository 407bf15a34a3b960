"""Draft and real text, set up once. The subject on the bench changes as causes are confirmed: the next test starts from the mended one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from eyas.doctor.checks.taps import default_boundaries
from eyas.doctor.hypothesis import Fault, Slot
from eyas.doctor.replay.measuring import Result, compare, measure
from eyas.doctor.replay.subject import Subject, changed, reverted
from eyas.doctor.replay.texts import evidence_of
from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.evaluate.infer.evidence import Evidence
from eyas.taps import Tap
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_FEWEST = 100  # rows below which nothing is decided
_NOTHING = 0.003  # in accuracy and in nats


class Bench:
    """`given` is the draft as it came, `subject` as it is mended so far. `whole`: the target's layers are there."""

    def __init__(self, exam: Examination, subject: Subject, target: Target, evidence: Evidence) -> None:
        self._exam, self.target, self.evidence = exam, target, evidence
        self.given = self.subject = subject
        self.whole = exam.loaded_target is not None
        self.steps: list[tuple[Fault, Subject, Subject]] = []
        self.searched: object = None  # the last search over states; see replay.taps
        self._results: dict[tuple[int, int], tuple[Subject, list[Result]]] = {}
        self._screened: dict[int, tuple[Subject, Result]] = {}

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.evidence.first)

    def results(self, subject: Subject, num_steps: int = 1) -> list[Result]:
        """On the rows that a verdict goes by."""
        for steps in (num_steps, 2):
            held = self._results.get((id(subject), steps))
            if held is not None:
                return held[1]
        found = measure(subject, self.target, self.evidence, self.evidence.first, num_steps)
        if len(self._results) > 40:
            self._results.pop(next(iter(self._results)))
        self._results[id(subject), num_steps] = (subject, found)  # the subject is held so that its id stays its own
        return found

    def screened(self, subject: Subject, num_steps: int = 1) -> Result:
        """The last step on a few rows only, to leave out what is not worth more."""
        held = self._screened.get(num_steps)
        if held is not None and held[0] is subject:
            return held[1]
        found = measure(subject, self.target, self.evidence, (self.evidence.search,), num_steps)[-1]
        if subject is self.subject:  # the one that all others are compared with
            self._screened[num_steps] = (subject, found)
        return found

    def adopt(self, subject: Subject, fault: Fault) -> None:
        """Go on from the mended draft; `fault` is what the change mends."""
        self.steps.append((fault, self.subject, subject))
        self.subject = subject
        self._exam.measured["mended"] = self._exam.measured.get("mended", 0) + 1
        self.note()

    def prune(self) -> list[Fault]:
        """Take back every change without which the mended draft is as good. Returns what they were said to mend.

        First all but one, if that one does as much alone: what was tried before the cause was found may have stood in for it.
        """
        dropped = self._all_but_one() if len(self.steps) > 1 else []
        for fault, before, after in self.steps if len(self.steps) > 1 and not dropped else ():
            other = reverted(self.subject, before, after)
            if self.as_good(other, self.subject):
                self.subject = other
                dropped.append(fault)
        if dropped:
            self.note()
        left = changed(self.given, self.subject)  # what was changed and changed back is no fault either
        undone = [fault for fault, before, after in self.steps if not changed(before, after) & left]
        return dropped + [fault for fault in undone if all(fault is not one for one in dropped)]

    def _all_but_one(self) -> list[Fault]:
        alone = [(fault, reverted(self.given, after, before)) for fault, before, after in self.steps]  # undoing the undone: doing it
        enough = [(fault, subject) for fault, subject in alone if changed(self.given, subject) and self.as_good(subject, self.subject)]
        if not enough:
            return []
        cause, self.subject = max(enough, key=lambda item: self.results(item[1], 2)[0].accuracy)
        return [fault for fault, _, _ in self.steps if fault is not cause]

    def as_good(self, left: Subject, right: Subject, nats: float = _NOTHING) -> bool:
        """`left` as `right`, at both steps. nats: so much less likely may it make the target's tokens."""
        both = zip(self.results(left, 2), self.results(right, 2), strict=True)
        return all(item.gain >= -_NOTHING and item.nats >= -nats for item in (compare(*pair) for pair in both))

    def note(self) -> None:
        """Write what the draft reaches now into the report."""
        first, second = self.results(self.subject, 2)
        measured = self._exam.measured
        measured |= {"rows": len(first.hits), "accuracy": first.accuracy, "accuracy_step_1": second.accuracy}
        measured.setdefault("accuracy_as_given", first.accuracy)
        measured.setdefault("pair_table_accuracy", _pair_table(self.evidence))
        measured.setdefault("accuracy_step_1_as_given", second.accuracy)
        wanted = [str(tap) for tap in self.subject.taps]
        self._exam.slots = tuple(Slot(slot, str(tap), wanted[slot]) for slot, tap in enumerate(self.given.taps))


def _pair_table(evidence: Evidence) -> float:
    """How often the commonest label behind a row's token, counted over all other rows, is the row's own: what no draft needs states for."""
    pairs: list[tuple[int, int]] = []
    for batch in evidence.first:
        at_BR = (batch.row_BR + 1).clamp(max=batch.token_BT.shape[1] - 1)
        tokens = batch.token_BT.gather(1, at_BR)[batch.valid_BR]
        pairs += zip(tokens.tolist(), batch.label_BR[batch.valid_BR].tolist(), strict=True)
    table: dict[int, Counter[int]] = {}
    for token, label in pairs:
        table.setdefault(token, Counter())[label] += 1
    hits = 0
    for token, label in pairs:
        others = table[token]
        rival = max((count for other, count in others.items() if other != label), default=0)
        hits += others[label] - 1 > rival
    return hits / max(1, len(pairs))


@torch.no_grad()
def set_up(exam: Examination) -> Bench | None:
    """None, with the reason in `exam.why_no_bench`, if there is no draft, no target, or no text to replay."""
    if exam.draft is None or exam.exhibits.target is None:
        return None
    if not exam.tensors:
        exam.why_no_bench = "the draft's weights cannot be read"
        return None
    target = exam.parts
    if target is None:
        return None
    try:
        config, tensors = _weights(exam)  # before texts are run: what is wrong with them costs nothing to see
        evidence = evidence_of(exam)
        subject = Subject(config, tensors, _taps(exam, config.num_taps, evidence))
        bench = Bench(exam, subject, target, evidence)
        if bench.num_rows < _FEWEST:
            raise UserError(f"only {bench.num_rows} rows of text, and fewer than {_FEWEST} decide nothing")
        bench.note()
    except UserError as error:
        exam.why_no_bench = " ".join(str(error).split())
        return None
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:  # a draft that contradicts itself fails in many ways
        exam.why_no_bench = f"the draft cannot be run: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return None
    return bench


def _weights(exam: Examination) -> tuple[DraftConfig, dict[str, torch.Tensor]]:
    from eyas.doctor.opening.lenient import lenient_config, stand_ins

    assert exam.parts is not None
    config, notes = lenient_config(exam)
    if config.target_hidden_size != exam.parts.hidden_size or config.vocab_size != exam.parts.vocab_size:
        raise UserError("the draft was made for a target of other sizes", got=config.target_hidden_size, allowed=exam.parts.hidden_size)
    tensors, more = stand_ins(exam, config)
    exam.notes += [*notes, *more]
    return config, tensors


def _taps(exam: Examination, count: int, evidence: Evidence) -> tuple[Tap, ...]:
    """As declared where that can be fed, else as an engine would guess, else the first states there are."""
    draft = exam.draft
    assert draft is not None
    layers = exam.parts.num_layers if exam.parts else 0
    for boundaries in (draft.boundaries, default_boundaries(layers)):
        taps = tuple(Tap(one) for one in boundaries or ())
        if len(taps) == count and all(tap in evidence.taps for tap in taps):
            return taps
    exam.notes.append("the states that the draft is said to read cannot be fed; it is replayed on others")
    if len(evidence.taps) < count:
        raise UserError("the dump holds fewer states than the draft reads", got=len(evidence.taps), allowed=count)
    return evidence.taps[:count]
