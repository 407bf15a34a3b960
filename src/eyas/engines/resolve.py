"""What an engine would feed a draft, worked out as the engine itself does: find the ids, read them, capture, join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.engines.rows import CaptureRow, Judged, ReaderRow
from eyas.engines.target_facts import TargetFacts
from eyas.errors import UserError
from eyas.taps import Tap, format_taps

DEFAULT = "the engine's default"


@dataclass(frozen=True)
class Fed:
    """What reaches the draft's fc, in the order of its columns.

    `source`: the config key that the ids came from, or DEFAULT. `problem`: why the engine would fail, or give another
    number of states than there are ids; None if it feeds one state an id.
    """

    taps: tuple[Tap, ...]
    source: str
    ids: tuple[int, ...]
    problem: str | None = None


def resolve(judged: Judged, target: TargetFacts, draft_config: Mapping[str, Any], runner: str | None = None) -> Fed:
    """What is fed with the given config.json of a draft, in the engine's own form.

    Args:
        runner: one of the engine's runners ("V1" or "V2" for vLLM); None asks all and wants them to agree.

    Raises:
        UserError: an architecture that no version captures, or an unknown runner.
    """
    readers = [row for row in judged.readers() if runner in (None, row.runner)]
    if not readers:
        allowed = ", ".join(row.runner for row in judged.readers())
        raise UserError(f"{judged.name} has no such runner", got=runner, allowed=allowed or "none is named")
    fed = {row.runner: _fed_by(row, judged, target, draft_config) for row in readers}
    first = fed[readers[0].runner]
    if len({(item.taps, item.problem) for item in fed.values()}) > 1:
        words = "; ".join(f"runner {name} feeds {format_taps(item.taps) or 'nothing'} from {item.source}" for name, item in fed.items())
        return Fed(first.taps, first.source, first.ids, f"the engine's runners do not agree: {words}")
    return first


def _fed_by(reader: ReaderRow, judged: Judged, target: TargetFacts, draft_config: Mapping[str, Any]) -> Fed:
    source, ids = _read_ids(reader, draft_config)
    row = judged.capture(target.architecture)
    layers = target.num_layers
    if row is None:
        return Fed((), source, ids, f"{judged.name} captures nothing for {target.architecture}")
    if source == DEFAULT:
        ids = (2, layers // 2, layers - 3)
        return _captured(row, ids, ids, source, layers)
    return _captured(row, row.meaning.boundaries(ids, layers), ids, source, layers)


def _read_ids(reader: ReaderRow, draft_config: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    for key in reader.ids_keys:
        value: Any = draft_config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list | tuple) and value:
            if not all(isinstance(number, int) and not isinstance(number, bool) for number in value):
                raise UserError(f"{key} must be a list of whole numbers", got=repr(value))
            return key, tuple(value)
    return DEFAULT, ()


def _captured(row: CaptureRow, boundaries: tuple[int, ...], ids: tuple[int, ...], source: str, num_layers: int) -> Fed:
    """Engines walk through the layers and pick what is asked for: ascending, each once, and nothing beyond the walk."""
    reached = sorted({number for number in boundaries if 0 <= number <= num_layers})
    problem = None
    if any(not 0 <= number <= num_layers for number in boundaries):
        problem = f"ids {list(ids)} ask for boundaries {list(boundaries)}, of which the target has 0 to {num_layers}"
    elif 0 in reached and row.no_embedding:
        problem = row.no_embedding
    elif num_layers in reached and row.no_last:
        problem = row.no_last
    elif len(reached) < len(boundaries):
        problem = f"ids {list(ids)} name {len(reached)} different states, and repeated ones are dropped"
    if row.no_last:
        reached = [number for number in reached if number < num_layers]
    return Fed(tuple(Tap(number) for number in reached), source, ids, problem)
