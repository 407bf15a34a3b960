"""Where a server's tokens are not the target's, by what made each of them: that tells whose fault it is.

    prefill    the first token of an answer: the served target alone, no draft in it
    first      the second token: one round of speculation, on caches that nothing was taken back from
    later      all others: rounds on caches that refused proposals have been in

Slips in the prefill speak of another target, slips in the first round of the rule by which drafts are accepted, and slips
that come only later of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.doctor.server.asking import Asking, Pass
from eyas.doctor.server.client import ServerError
from eyas.doctor.server.judging import Judge, Slip
from eyas.doctor.server.questions import TOKENS
from eyas.errors import UserError

_CLEAR = 3.0  # standard deviations by which one share is more than another, and slips that must be expected where there are none


@dataclass(frozen=True)
class Share:
    """`slips` are no ties."""

    tokens: int
    slips: tuple[Slip, ...]

    @property
    def rate(self) -> float:
        return len(self.slips) / self.tokens if self.tokens else 0.0

    def beyond(self, other: Share) -> bool:
        """Whether there are clearly more slips here than there: by the two shares' difference in its own deviations."""
        if not self.tokens or not other.tokens:
            return False
        both = (len(self.slips) + len(other.slips)) / (self.tokens + other.tokens)
        deviation = (both * (1 - both) * (1 / self.tokens + 1 / other.tokens)) ** 0.5
        return self.rate - other.rate > _CLEAR * deviation


@dataclass(frozen=True)
class Tally:
    """`ties`: tokens that differ from the target's choice no farther than bf16 moves logits. `probed`: the probes could be asked."""

    prefill: Share
    first: Share
    later: Share
    ties: int
    probed: bool

    @property
    def tokens(self) -> int:
        return self.prefill.tokens + self.first.tokens + self.later.tokens

    @property
    def other_target(self) -> bool:
        return len(self.prefill.slips) >= 2

    @property
    def lossy(self) -> bool:
        """More slips than the served target itself explains."""
        return self.rounds.beyond(self.prefill) if self.other_target else bool(self.rounds.slips)

    @property
    def rounds(self) -> Share:
        return Share(self.first.tokens + self.later.tokens, (*self.first.slips, *self.later.slips))

    @property
    def by_caches(self) -> bool:
        """Rounds are right on clean caches and wrong later, and there were enough of the clean ones to see the difference."""
        return self.probed and len(self.first.slips) == 0 and self.first.tokens * self.later.rate > _CLEAR


def tally_of(asking: Asking, judge: Judge) -> Tally:
    """Raises UserError if the answers cannot be had or judged."""
    alone = asking.alone
    judged = judge.slips(alone.questions, alone.replies)
    tokens = [TOKENS if reply.tokens is None else len(reply.tokens) for reply in alone.replies]
    probes = _probes(asking)
    starts = [] if probes is None else [replace(reply, tokens=(reply.tokens or ())[:2], stopped=False) for reply in probes.replies]
    probed = [] if probes is None else _probe_slips(alone, judged, replace(probes, replies=tuple(starts)), judge)
    probe_tokens = [len(reply.tokens or ()) for reply in starts]
    real = [slip for answer in (*judged, *probed) for slip in _no_ties(judge, answer)]
    every = sum(map(len, (*judged, *probed)))
    counts = [*tokens, *probe_tokens]
    return Tally(
        prefill=Share(sum(count > 0 for count in counts), tuple(slip for slip in real if slip.place == 0)),
        first=Share(sum(count > 1 for count in counts), tuple(slip for slip in real if slip.place == 1)),
        later=Share(sum(max(0, count - 2) for count in tokens), tuple(slip for slip in real if slip.place > 1)),
        ties=every - len(real),
        probed=probes is not None,
    )


def _probes(asking: Asking) -> Pass | None:
    """None where the server gives no ids to go on from; raises ServerError if it fails."""
    try:
        return asking.probes
    except ServerError:
        raise
    except UserError:
        return None


def _probe_slips(alone: Pass, judged: Sequence[list[Slip]], probes: Pass, judge: Judge) -> list[list[Slip]]:
    """A probe that says what the answer said there is judged already, with that answer: it stands behind the same text."""
    answers = {}
    for question, reply, slips in zip(alone.questions, alone.replies, judged, strict=True):
        answers[question.id] = (reply.tokens or (), slips)
    found, open_ = [], []
    for question, reply in zip(probes.questions, probes.replies, strict=True):
        name, _, place = question.id.rpartition("+")
        tokens, slips = answers[name]
        at, said = int(place), reply.tokens or ()
        if tokens[at : at + len(said)] == said:
            found.append([replace(slip, place=slip.place - at) for slip in slips if at <= slip.place < at + len(said)])
        else:
            open_.append((question, reply))
    return found + (judge.slips([question for question, _ in open_], [reply for _, reply in open_]) if open_ else [])


def _no_ties(judge: Judge, slips: Sequence[Slip]) -> list[Slip]:
    """Once a slip is a tie, those of smaller gaps in the same answer are not looked at."""
    found = []
    for slip in sorted(slips, key=lambda slip: -slip.gap):
        if judge.is_tie(slip):
            break
        found.append(slip)
    return found
