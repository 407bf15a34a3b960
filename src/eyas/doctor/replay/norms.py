"""Every norm switch, and every norm's weights, the other way round."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Outcome, percent, ruled_out
from eyas.doctor.replay.measuring import compare
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.trial import LEARNT, STANDS_IN, Option, bench_of, try_options

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_LOOKS_CENTRED, _FAR_BETTER = 0.2, 0.05  # a mean weight; in accuracy
_SUSPECTS = ("norm-flags", "norm-feedback", "files-mixed", "not-loadable")


def try_placement(exam: Examination) -> Outcome:
    options = placements(exam)
    return try_options(exam, "norm-placement", options, suspected=exam.suspects(*_SUSPECTS))


def placements(exam: Examination) -> list[Option]:
    subject = bench_of(exam).subject
    config = subject.config
    options = []
    value = not config.norm_before_residual
    remedy = f"set norm_before_residual to {str(value).lower()} in the draft's config"
    options.append(Option(f"norm_before_residual {value}", subject.configured(norm_before_residual=value), remedy))
    norms = [name for name in exam.tensors if name.startswith("fc_norm.")]
    if config.norm_before_fc:
        options.append(_off(subject, "norm_before_fc", "input_norm.weight"))
    elif "input_norm.weight" in exam.tensors:
        tensors = {"input_norm.weight": exam.tensors["input_norm.weight"].float()}
        options.append(Option("norm_before_fc True", subject.having(tensors, norm_before_fc=True), "set norm_before_fc to true"))
    if config.fc_norm:
        options.append(_off(subject, "fc_norm", *norms))
        options += _reordered(subject)
    elif len(norms) == config.num_taps:
        tensors = {name: exam.tensors[name].float() for name in norms}
        options.append(Option("fc_norm True", subject.having(tensors, fc_norm=True), "set fc_norm to true"))
    return options + _swapped(subject) + _lost(subject)


def _lost(subject: Subject) -> list[Option]:
    """Norms in front of fc that a converter dropped, weights and all: with weights of 1 they do most of what they did."""
    config = subject.config
    if config.norm_before_fc or config.fc_norm:
        return []
    width, count = config.target_hidden_size, config.num_taps
    remedy = "export the draft again with the norms that it was trained with in front of fc: their weights are not in this checkpoint"
    each = {f"fc_norm.{slot}.weight": torch.ones(width) for slot in range(count)}
    whole = {"input_norm.weight": torch.ones(count * width)}
    lost = [("each state normed before fc", each, {"fc_norm": True}), ("all states normed before fc", whole, {"norm_before_fc": True})]
    return [Option(words, subject.having(tensors, **on), remedy, factor=STANDS_IN) for words, tensors, on in lost]


def _off(subject: Subject, flag: str, *names: str) -> Option:
    return Option(f"{flag} False", subject.without(*names, **{flag: False}), f"set {flag} to false: the draft was trained without it")


def _reordered(subject: Subject) -> list[Option]:
    """The norms of fc_norm in another order than the slots."""
    count = subject.config.num_taps
    found = []
    for order in permutations(range(count)) if count <= 4 else []:
        if list(order) != sorted(order):
            moved = {f"fc_norm.{slot}.weight": subject.tensors[f"fc_norm.{old}.weight"] for slot, old in enumerate(order)}
            found.append(Option(f"norms of fc_norm in the order {list(order)}", subject.having(moved), f"reorder fc_norm to {list(order)}"))
    return found


def _swapped(subject: Subject) -> list[Option]:
    """Two norms of the layer, each in the other's place."""
    names = [f"midlayer.{name}.weight" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")] + ["norm.weight"]
    found = []
    for left, right in ((0, 1), (0, 2), (1, 2), (2, 3)):
        a, b = names[left], names[right]
        if not torch.equal(subject.tensors[a], subject.tensors[b]):
            moved = {a: subject.tensors[b], b: subject.tensors[a]}
            found.append(Option(f"{a} and {b} exchanged", subject.having(moved), f"exchange {a} and {b} in the weights"))
    return found


def try_feedback(exam: Examination) -> Outcome:
    """A draft that learnt to read what it feeds back is nearly as often right at step 1 as at step 0; one that never did is not."""
    bench = bench_of(exam)
    subject = bench.subject
    least = LEARNT * bench.results(subject, 2)[0].accuracy
    value = not subject.config.norm_output
    remedy = f"set norm_output to {str(value).lower()} in the draft's config, and serve with an engine version that honours it"
    option = Option(f"norm_output {value}", subject.configured(norm_output=value), remedy)
    return try_options(exam, "norm-feedback", [option], step=1, suspected=exam.suspects(*_SUSPECTS), least=least)


def try_offset(exam: Examination) -> Outcome:
    """Weights stored as differences from 1, or with a 1 too many, all of them or one group."""
    subject = bench_of(exam).subject
    norms = [
        name
        for name, tensor in subject.tensors.items()
        if (tensor.ndim == 1 and name.endswith("norm.weight")) or name.startswith("fc_norm.")
    ]
    norms = list(dict.fromkeys(norms))
    means = {name: float(subject.tensors[name].mean()) for name in norms}
    options = []
    for sign, words, candidates in (
        (1.0, "plus 1", [n for n in norms if means[n] < 1.0]),
        (-1.0, "minus 1", [n for n in norms if means[n] > 1.3]),
    ):
        groups = [norms, candidates, *([name] for name in candidates)]
        for group in {tuple(group) for group in groups if group and (candidates or group is not norms)}:
            moved = {name: subject.tensors[name] + sign for name in group}
            named = "all norms" if len(group) == len(norms) else ", ".join(group)
            remedy = f"store {named} {words}: engines multiply by the weights as they are"
            options.append(Option(f"{named} {words}", subject.having(moved), remedy))
    found = try_options(exam, "norm-convention", options, suspected=exam.suspects("norm-convention"))
    return found if found.judgement == "confirmed" else _acquitted(exam, [name for name in norms if means[name] < _LOOKS_CENTRED]) or found


def _acquitted(exam: Examination, accused: list[str]) -> Outcome | None:
    """Weights near 0 were learnt so, whatever they look like, if the draft is right far more often with them than with 1 added."""
    if not accused or not exam.suspects("norm-convention"):
        return None
    bench = bench_of(exam)
    other = bench.subject.having({name: bench.subject.tensors[name] + 1 for name in accused})
    won = compare(bench.results(bench.subject)[0], bench.results(other)[0])
    if won.gain < _FAR_BETTER or not won.decisive(False):
        return None
    text = f"{', '.join(accused)}: right on {percent(won.after)} of the rows as they are, on {percent(won.before)} with 1 added"
    return dataclasses.replace(ruled_out(text, as_given=won.after, plus_one=won.before), overrules=(("draft", "norm-convention"),))


def try_normed_states(exam: Examination) -> Outcome:
    """The target's final norm in front of fc: of every slot, and of each alone."""
    bench = bench_of(exam)
    subject = bench.subject
    slots = [slot for slot, tap in enumerate(subject.taps) if not tap.is_final]
    groups = [frozenset(slots), *(frozenset([slot]) for slot in slots)]
    options = [
        Option(
            f"the target's final norm applied to slot{'s' if len(group) > 1 else ''} {sorted(group)}",
            Subject(**{**vars(subject), "normed": group}),
            "feed it normed states as in training; or capture without that norm and train again",
        )
        for group in dict.fromkeys(groups)
        if group and group != subject.normed
    ]
    return try_options(exam, "norm-state", options, small=False)
