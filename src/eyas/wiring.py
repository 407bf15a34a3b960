"""The wiring: everything that a draft's training and serving must agree on, as one frozen value.

It is written into every dump, checkpoint and export, and compared before a tensor is read. A field that an
artefact cannot know (a dump has no RoPE of the draft) is None there and is not compared. Each field has a class:

    must match           a difference is an error: the draft would be fed something it was not trained on
    compared in numbers  names differ lawfully; the trace decides (`capture.trace`)
    recorded             a difference is worth a warning or nothing
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from eyas.errors import UserError, WiringError, in_words
from eyas.taps import Tap, format_taps, parse_taps

FORMAT = 1
WIRING_HASH = "eyas_wiring"  # the key under which tensor files keep the hash of the wiring they were written with
PAIRING = "state[p] with token[p+1] predicts token[p+2]"
LOSS_MASK_RULE = "row p is trained iff token[p+1] and token[p+2] are answer tokens, end-of-turn included"

FieldClass = Literal["must match", "compared in numbers", "recorded"]
D2tKind = Literal["offset", "full"]
Owner = Literal["target", "draft"]


def _must(default: Any = None) -> Any:
    return field(default=default, metadata={"class": "must match"})


def _numbers(default: Any = None) -> Any:
    return field(default=default, metadata={"class": "compared in numbers"})


def _recorded(default: Any = None) -> Any:
    return field(default=default, metadata={"class": "recorded"})


@dataclass(frozen=True)
class Wiring:
    """See the module's docstring. Hashes are sha256 in hex."""

    taps: tuple[Tap, ...] = _must(())
    num_target_layers: int | None = _must()
    target_hidden_size: int | None = _must()
    target_vocab_size: int | None = _must()
    tokenizer_hash: str | None = _must()
    pairing: str | None = _must(PAIRING)
    norm_before_fc: bool | None = _must()
    fc_norm: bool | None = _must()
    norm_before_residual: bool | None = _must()
    norm_output: bool | None = _must()
    rope_inv_freq: tuple[float, ...] | None = _must()
    rope_attention_scaling: float | None = _must()
    d2t_kind: D2tKind | None = _must()
    d2t_hash: str | None = _must()
    embedding_source: Owner | None = _must()
    lm_head_source: Owner | None = _must()

    target_name: str | None = _numbers()
    trace_hash: str | None = _numbers()
    states_dtype: str | None = _numbers()

    teacher: Tap | None = _recorded()
    teacher_norm_applied: bool | None = _recorded()
    teacher_verified: bool | None = _recorded()
    loss_mask_rule: str | None = _recorded(LOSS_MASK_RULE)
    ttt_steps: int | None = _recorded()
    corpus_hash: str | None = _recorded()
    chat_template_hash: str | None = _recorded()
    rope_offset: int | None = _recorded()

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"wiring_format": FORMAT}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            out[item.name] = _jsonable(value)
        return out

    @staticmethod
    def from_json(value: Mapping[str, Any], where: str) -> Wiring:
        """`where` names the file in errors. Raises UserError for unknown, missing or ill-typed fields."""
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: the wiring must be a JSON object", got=type(value).__name__)
        if value.get("wiring_format") != FORMAT:
            raise UserError(f"{where}: wiring of an unknown format", got=value.get("wiring_format"), allowed=FORMAT)
        names = [item.name for item in dataclasses.fields(Wiring)]
        unknown = sorted(set(value) - set(names) - {"wiring_format"})
        missing = sorted(set(names) - set(value))
        if unknown or missing:
            raise UserError(
                f"{where}: wiring with unknown or missing fields",
                got=f"unknown {in_words(unknown)}; missing {in_words(missing)}",
                allowed=names,
            )
        return Wiring(**{name: _parse_field(name, value[name], where) for name in names})

    def hash(self) -> str:
        """A hash over all fields that must match; equal hashes mean interchangeable wiring."""
        kept = {
            item.name: _jsonable(getattr(self, item.name)) for item in dataclasses.fields(self) if item.metadata["class"] == "must match"
        }
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def require_hash(self, written: str | None, tensors: str, stated: str) -> None:
        """Raises WiringError if the file `tensors` was written with another wiring than this one, read from the file `stated`.

        Files without a hash, of other makers or older ones, pass.
        """
        if written not in (None, self.hash()):
            raise WiringError(
                f"{stated} is not the wiring that {tensors} was written with",
                got=f"{self.hash()[:16]}..., taps {shown(self.taps)}",
                allowed=f"{written[:16]}..." if written else None,
                remedy="the wiring was edited, or files of two folders were mixed: copy the folder again, whole",
            )

    def replace(self, **changes: Any) -> Wiring:
        return dataclasses.replace(self, **changes)

    def diff(self, other: Wiring) -> tuple[Difference, ...]:
        """What differs, most serious class first; fields that either side does not state are left out."""
        found = []
        for item in dataclasses.fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if mine in (None, ()) or theirs in (None, ()) or _same(item.name, mine, theirs):
                continue
            cause, remedy = _explain(item.name, mine, theirs)
            found.append(Difference(item.name, item.metadata["class"], shown(mine), shown(theirs), cause, remedy))
        order = ("must match", "compared in numbers", "recorded")
        return tuple(sorted(found, key=lambda difference: order.index(difference.field_class)))


@dataclass(frozen=True)
class Difference:
    """One field on which two wirings differ, in words."""

    field: str
    field_class: FieldClass
    left: str
    right: str
    cause: str
    remedy: str

    def text(self, left_name: str, right_name: str) -> str:
        width = max(len(left_name), len(right_name)) + 1
        return "\n".join(
            [
                f"{self.field} ({self.field_class})",
                f"  {left_name + ':':<{width}} {self.left}",
                f"  {right_name + ':':<{width}} {self.right}",
                f"  likely cause: {self.cause}",
                f"  remedy: {self.remedy}",
            ]
        )


def require_match(left: Wiring, left_name: str, right: Wiring, right_name: str) -> tuple[Difference, ...]:
    """Raise WiringError if a field that must match differs; return the other differences, for warnings."""
    differences = left.diff(right)
    fatal = [difference for difference in differences if difference.field_class == "must match"]
    if fatal:
        raise WiringError(
            f"the wiring of {left_name} and {right_name} differs:\n" + "\n".join(item.text(left_name, right_name) for item in fatal)
        )
    return tuple(difference for difference in differences if difference.field_class != "must match")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Tap):
        return str(value)
    if isinstance(value, tuple):
        return [_jsonable(part) for part in value]
    return value


_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63,
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max,
}


_CHOICES: dict[str, Any] = {"d2t_kind": D2tKind, "embedding_source": Owner, "lm_head_source": Owner}


def _parse_field(name: str, value: Any, where: str) -> Any:
    if name == "taps":
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise UserError(f"{where}: wiring field taps must be a list of names", got=repr(value)[:80])
        return _parse_taps(parse_taps, ",".join(value), name, where) if value else ()
    if value is None:
        return None
    if name == "teacher":
        return _parse_taps(Tap.parse, str(value), name, where)
    if name == "rope_inv_freq":
        if not isinstance(value, list) or not all(_KINDS["float"](part) for part in value):
            raise UserError(f"{where}: wiring field rope_inv_freq must be a list of numbers", got=repr(value)[:80])
        return tuple(float(part) for part in value)
    annotation = str(Wiring.__dataclass_fields__[name].type)
    fits = _KINDS.get(annotation.removesuffix(" | None"), lambda value: value in get_args(_CHOICES[name]))
    if not fits(value):
        raise UserError(f"{where}: wiring field {name} has the wrong type or value", got=repr(value)[:80], allowed=annotation)
    return value


def _parse_taps(parse: Callable[[str], Any], text: str, name: str, where: str) -> Any:
    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"{where}: wiring field {name}: {error.what}", got=error.got, allowed=error.allowed) from error


def _same(name: str, left: Any, right: Any) -> bool:
    if name == "rope_inv_freq":  # stored as text: equal to seven digits is equal in fp32
        return len(left) == len(right) and all(abs(a - b) <= 1e-6 * max(abs(a), abs(b)) for a, b in zip(left, right, strict=True))
    if name == "rope_attention_scaling":
        return abs(left - right) <= 1e-6 * abs(left)
    if name == "rope_offset":  # RoPE is relative: a constant offset changes no attention score
        return True
    return bool(left == right)


def shown(value: Any) -> str:
    """A field's value for people: long lists are shortened."""
    if isinstance(value, tuple) and value and isinstance(value[0], Tap):
        return "[" + ", ".join(str(tap) for tap in value) + "]"
    if isinstance(value, tuple):
        return f"[{value[0]:.6g}, {value[1]:.6g}, ... {value[-1]:.6g}] ({len(value)} frequencies)" if len(value) > 2 else str(list(value))
    return str(value)


_CAUSES: dict[str, tuple[str, str]] = {
    "num_target_layers": ("these belong to different targets", "use the target that the draft was trained for"),
    "target_hidden_size": ("these belong to different targets", "use the target that the draft was trained for"),
    "target_vocab_size": (
        "these belong to different targets, or the vocabulary was padded",
        "use the target that the draft was trained for",
    ),
    "tokenizer_hash": ("the tokenizers give other ids for the same text", "use the tokenizer files that the dump was made with"),
    "pairing": (
        "token and state are shifted against each other",
        "make the dump again with Eyas, or import it with the right --convention",
    ),
    "norm_before_fc": (
        "one side norms the concatenated states before fc, the other does not",
        "set the flag to what the draft was trained with",
    ),
    "fc_norm": ("one side norms each tap before fc, the other does not", "set the flag to what the draft was trained with"),
    "norm_before_residual": (
        "the residual is taken before the norm on one side, after it on the other",
        "set the flag to what the draft was trained with",
    ),
    "norm_output": (
        "one side feeds the normed state back into the draft, the other the raw one",
        "set the flag to what the draft was trained with",
    ),
    "rope_inv_freq": (
        "rope_theta or scaling was read from another key or defaulted",
        "write rope_theta both at top level and in rope_parameters",
    ),
    "rope_attention_scaling": ("the RoPE scaling (YaRN, longrope) differs", "copy the rope parameters the draft was trained with"),
    "d2t_kind": ("one side has a reduced draft vocabulary, the other the full one", "use the draft's own d2t"),
    "d2t_hash": (
        "the draft-vocabulary map was made again from other data",
        "use the d2t stored with the draft; its lm_head rows mean those tokens",
    ),
    "embedding_source": ("one side brings its own embedding, the other shares the target's", "export again, with or without embed_tokens"),
    "lm_head_source": ("one side brings its own lm_head, the other shares the target's", "export again, with or without lm_head"),
    "chat_template_hash": (
        "the chat template changed since the data was made",
        "render with the template of the dump, or expect a lower acceptance",
    ),
    "states_dtype": ("the states were captured in another dtype", "nothing to do if the trace agrees"),
    "target_name": ("another copy or another model; only the trace tells", "eyas doctor or eyas evaluate runs the target and compares it"),
    "trace_hash": ("the fingerprints differ in bits; within rounding this is the same model", "compare the traces in numbers"),
    "teacher": ("the labels come from another state", "only the target's last state gives the target's own tokens: --teacher final"),
}


def _explain(name: str, left: Any, right: Any) -> tuple[str, str]:
    if name == "taps":
        return _explain_taps(left, right)
    return _CAUSES.get(name, ("made with other settings", "nothing to do unless it was not meant"))


def _explain_taps(left: tuple[Tap, ...], right: tuple[Tap, ...]) -> tuple[str, str]:
    remedy = f"feed the draft what it was trained on, or train a draft on the other states: --taps {format_taps(left)}"
    if len(left) != len(right):
        return f"{len(left)} states on one side, {len(right)} on the other", remedy
    if sorted(map(str, left)) == sorted(map(str, right)):
        return "the same states in another order: the columns of fc belong to slots", remedy
    pairs = list(zip(left, right, strict=True))
    steps = {a.boundary - b.boundary for a, b in pairs if a.boundary is not None and b.boundary is not None}
    if len(steps) == 1 and steps <= {1, -1} and all((a.boundary is None) == (b.boundary is None) for a, b in pairs):
        return "off by one: one side counts a layer's input, the other its output", remedy
    if left[0] == Tap(0) and left[1:] == right[:-1]:
        return "the embedding was dropped and a later layer appended (the Kimi-K2.5 case)", remedy
    if right[0] == Tap(0) and right[1:] == left[:-1]:
        return "the embedding was added in front and the last state dropped (the Kimi-K2.5 case)", remedy
    return "the states were captured at other layers", remedy
