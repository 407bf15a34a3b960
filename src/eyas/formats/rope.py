"""RoPE in configs: transformers 5 keeps one object `rope_parameters`, older ones `rope_theta` beside `rope_scaling`.

A reader of the one key silently takes 10000 when it finds the other, so both are always written, and a config whose two
keys disagree is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eyas.errors import UserError

_NUMBERS = ("factor", "mscale", "mscale_all_dim", "attention_factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
_OF_ANY_KIND = ("rope_theta", "partial_rotary_factor")  # not a scaling's
_KEEP = "keep what the draft was trained with, and remove the other; eyas wiring infer finds out which"
DEFAULT_THETA = 10000.0  # of transformers' LlamaConfig and of every project's fallback


def write_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The three keys, for readers old and new."""
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    kind = parameters.get("rope_type", "default")
    return {
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": None if kind == "default" else {**scaling, "type": kind},
        "rope_parameters": dict(parameters),
    }


def read_rope(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], bool]:
    """RoPE parameters as transformers 5 has them, and whether the config names a theta at all.

    Raises UserError for keys that contradict each other and for kinds of RoPE that a draft here has not.
    """
    new, old = _object(config, "rope_parameters", where), _object(config, "rope_scaling", where)
    thetas = {
        place: theta
        for place, theta in (
            ("rope_theta", config.get("rope_theta")),
            ("rope_parameters.rope_theta", new.get("rope_theta")),
            ("rope_scaling.rope_theta", old.get("rope_theta")),
        )
        if theta is not None
    }
    for place, theta in thetas.items():
        if not _is_number(theta) or theta <= 0:
            raise UserError(f"{where}: {place} must be a positive number", got=repr(theta)[:80])
    if len(set(thetas.values())) > 1:
        raise UserError(
            f"{where} names two thetas of RoPE",
            got=", ".join(f"{place} = {theta}" for place, theta in thetas.items()),
            remedy="keep the one that the draft was trained with; eyas wiring infer finds out which",
        )
    if new and old:
        _refuse_differences(new, old, where)
    parameters = dict(new or old)
    if new.get("rope_theta") is None or "rope_type" in parameters:
        parameters = {**parameters, "rope_type": rope_kind(parameters), "rope_theta": next(iter(thetas.values()), DEFAULT_THETA)}
    _refuse_odd_kinds(parameters, config, where)
    _refuse_odd_values(parameters, where)
    return parameters, bool(thetas)


def rope_kind(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("rope_type", "default"))


def yarn_softmax_factor(parameters: Mapping[str, Any]) -> float:
    """DeepSeek's mscale squared, by which MLA scores grow under YaRN; 1 for any other RoPE."""
    all_dim, factor = parameters.get("mscale_all_dim") or 0.0, parameters.get("factor") or 1.0
    if parameters.get("rope_type") != "yarn" or not all_dim or factor <= 1.0:
        return 1.0
    return float((0.1 * all_dim * math.log(factor) + 1.0) ** 2)


def _object(config: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """One of the two objects, its kind under transformers 5's name, `rope_type`; {} if it is not there.

    Raises UserError for one that is no object, names two kinds, or has numbers of a scaling and names none.
    """
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{where}: {key} must be an object", got=repr(value)[:80])
    named = {name: str(kind) for name in ("type", "rope_type") if (kind := (value or {}).get(name)) is not None}
    if "mrope" in named.values():
        named = {"rope_type": "mrope"}  # transformers writes a second kind beside it
    if len(set(named.values())) > 1:
        raise UserError(f"{where}: {key} names two kinds of RoPE", got=named, remedy=_KEEP)
    plain = {name: part for name, part in (value or {}).items() if name not in ("type", "rope_type")}
    scaling = sorted(name for name, part in plain.items() if part is not None and name not in _OF_ANY_KIND)
    if scaling and not named:
        raise UserError(
            f"{where}: {key} scales RoPE without a kind", got=scaling, remedy="add rope_type as the draft was trained, or remove them"
        )
    return plain | ({"rope_type": next(iter(named.values()))} if named else {})


def _refuse_differences(new: Mapping[str, Any], old: Mapping[str, Any], where: str) -> None:
    """Theta is compared by itself: most configs name it in one place only."""
    kinds = [rope_kind(new), rope_kind(old)]
    if len(set(kinds)) > 1:
        raise UserError(f"{where}: rope_parameters and rope_scaling name two kinds of RoPE", got=kinds, remedy=_KEEP)
    names = sorted({*new, *old} - {"rope_theta", "rope_type"})
    apart = [name for name in names if new.get(name) != old.get(name)]
    if apart:
        raise UserError(
            f"{where}: rope_parameters and rope_scaling give RoPE other numbers",
            got=", ".join(f"{name} = {new.get(name)!r} and {old.get(name)!r}" for name in apart)[:300],
            remedy=_KEEP,
        )


def _refuse_odd_kinds(parameters: Mapping[str, Any], config: Mapping[str, Any], where: str) -> None:
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UserError(f"{where}: a draft whose RoPE turns a part of each head cannot be carried", got=f"partial_rotary_factor {partial}")
    if parameters.get("rope_type") == "mrope" or parameters.get("mrope_interleaved"):
        raise UserError(f"{where}: multimodal RoPE (mrope) cannot be carried", got=dict(parameters))


def _refuse_odd_values(parameters: Mapping[str, Any], where: str) -> None:
    """Everything but names, switches and lists of factors is a number; projects compute with it as it stands."""
    for name, value in parameters.items():
        is_plain = value is None or isinstance(value, str | bool) or _is_number(value)
        if not is_plain and not (isinstance(value, list) and all(map(_is_number, value))):
            raise UserError(f"{where}: {name} of RoPE has a value that cannot be computed with", got=repr(value)[:80])
    for name in _NUMBERS:
        if parameters.get(name) is not None and not _is_number(parameters[name]):
            raise UserError(f"{where}: {name} of RoPE must be a number", got=repr(parameters[name])[:80])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
