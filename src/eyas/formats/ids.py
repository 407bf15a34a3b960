"""Layer ids of other projects, and the states that they mean.

The same key holds ids of two meanings: `boundary` (id i is the state that enters layer i) and `output` (what leaves
layer i, so boundary i + 1). Nothing in a file says which; it depends on who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from eyas.errors import UserError
from eyas.taps import Tap, format_taps

Meaning = Literal["boundary", "output"]
KEY = "eagle_aux_hidden_state_layer_ids"
ANGELSLIM_KEY = "aux_hidden_states_layer_ids"
VLLM_KEY = "layer_ids"  # of eagle_config; vLLM's V2 runner alone reads it
_LIKE_IDS = re.compile(r"(layer_ids|layer_indices|layers_to_capture|extract_layers)$")
IN_WORDS = {"boundary": "the state that enters layer i", "output": "the output of layer i"}


def check_meaning(value: str | None) -> Meaning | None:
    """Raises UserError for a --convention that is not known."""
    if value is not None and value not in get_args(Meaning):
        allowed = "; ".join(f"{name}: id i is {words}" for name, words in IN_WORDS.items())
        raise UserError("--convention is not known", got=value, allowed=allowed)
    return value  # type: ignore[return-value]


def eagle_config_of(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The object in which several projects keep ids and switches. Raises UserError for anything else under its name."""
    nested = config.get("eagle_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise UserError(f"{where}: eagle_config must be an object", got=repr(nested)[:80])
    return nested or {}


def ids_of(config: Mapping[str, Any], where: str) -> list[int] | None:
    """The ids in a config, wherever a project keeps them; None if there are none.

    Raises UserError for ids that are not numbers, and for two places that disagree.
    """
    places = {
        f"eagle_config.{KEY}": eagle_config_of(config, where).get(KEY),
        KEY: config.get(KEY),
        ANGELSLIM_KEY: config.get(ANGELSLIM_KEY),
        f"eagle_config.{VLLM_KEY}": eagle_config_of(config, where).get(VLLM_KEY),
    }
    found = {place: ids for place, ids in places.items() if ids is not None}
    for place, ids in found.items():
        if not isinstance(ids, list) or not ids or not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
            raise UserError(
                f"{where}: {place} must be a list of layer ids", got=repr(ids)[:80], remedy="correct or remove it; --taps names the states"
            )
    if len({tuple(ids) for ids in found.values()}) > 1:
        raise UserError(
            f"{where} names the layers twice, and not the same ones",
            got=", ".join(f"{place} = {ids}" for place, ids in found.items()),
            remedy="keep the one that the draft was trained with",
        )
    return next(iter(found.values()), None)


def for_vllm_alone(config: Mapping[str, Any], where: str) -> bool:
    """Whether the only ids are those that vLLM's V2 runner reads."""
    nested = eagle_config_of(config, where)
    return nested.get(VLLM_KEY) is not None and all(part.get(key) is None for part in (config, nested) for key in (KEY, ANGELSLIM_KEY))


def unread_ids(config: Mapping[str, Any]) -> dict[str, Any]:
    """Lists under keys that sound like layer ids, but that none of the projects here keeps its own under."""
    parts = {"": config, **{f"{name}.": part for name, part in config.items() if isinstance(part, Mapping)}}
    read = {f"eagle_config.{KEY}", f"eagle_config.{VLLM_KEY}", KEY, ANGELSLIM_KEY}
    named = {prefix + key: value for prefix, part in parts.items() for key, value in part.items() if _LIKE_IDS.search(key)}
    return {key: value for key, value in named.items() if isinstance(value, list) and value and key not in read}


def to_taps(ids: Sequence[int], meaning: Meaning, where: str) -> tuple[Tap, ...]:
    """Raises UserError for an id that means no state, and for a state named twice."""
    taps = tuple(Tap(one if meaning == "boundary" else one + 1) for one in ids)
    for one, tap in zip(ids, taps, strict=True):
        if tap.boundary is None or not 0 <= tap.boundary < 100_000:
            raise UserError(
                f"{where}: layer id {one} means no state",
                allowed=f"{0 if meaning == 'boundary' else -1} or more, if id i is {IN_WORDS[meaning]}",
                remedy="say what the ids mean with --convention, or name the states with --taps",
            )
        if taps.count(tap) > 1:
            raise UserError(f"{where}: layer id {one} is named twice", got=list(ids), remedy="name the states with --taps")
    return taps


def to_ids(taps: Sequence[Tap], meaning: Meaning, title: str) -> list[int]:
    """Raises UserError for `final`, which no layer id means."""
    if any(tap.is_final for tap in taps):
        raise UserError(
            f"{title} has no layer id for the state after the final norm",
            got=format_taps(tuple(taps)),
            remedy="only Eyas's own format and formats without ids carry such a draft",
        )
    return [(tap.boundary or 0) - (0 if meaning == "boundary" else 1) for tap in taps]


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """What every project but speculators 0.3 and 0.4 captures if nothing is said: ids differ, the states do not."""
    return (2, num_layers // 2, num_layers - 3)


def old_speculators_boundaries(num_layers: int) -> tuple[int, ...]:
    """speculators 0.3 and 0.4 took the outputs of layers 2, N // 2 and N - 3."""
    return (3, num_layers // 2 + 1, num_layers - 2)
