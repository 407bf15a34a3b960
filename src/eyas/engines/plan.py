"""Which config keys and flags make an engine and version feed a draft what it was trained on, or why none do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.engines.catalog import ENGINES
from eyas.engines.draft_facts import FEATURES, DraftFacts
from eyas.engines.flags import DRAFT_FOLDER, launch_flags
from eyas.engines.resolve import resolve
from eyas.engines.rows import CaptureRow, IdMeaning, Judged
from eyas.engines.target_facts import TargetFacts
from eyas.taps import Tap, format_taps
from eyas.wiring import Wiring


@dataclass(frozen=True)
class Plan:
    """`config`: the keys to write into the draft's config.json. `notes`: why it cannot be done, or what to know.

    `permutation`: slot i of the draft as the engine needs it is slot permutation[i] of the draft as it was trained. The
    columns of fc, the parts of input_norm and the norms of fc_norm move together. `taps` are in the engine's order.
    """

    reachable: bool
    config: Mapping[str, Any]
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    permutation: tuple[int, ...] = ()
    taps: tuple[Tap, ...] = ()

    @property
    def moves_slots(self) -> bool:
        return self.permutation != tuple(range(len(self.permutation)))

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "taps": [str(tap) for tap in self.taps]}


def plan(wiring: Wiring, judged: Judged, target: TargetFacts, draft: DraftFacts | None = None, folder: str = DRAFT_FOLDER) -> Plan:
    """The plan for one draft, engine, version and target; a plan that is reachable was resolved again and fed these taps.

    Args:
        draft: None if only the wiring is known, of a dump say: then what kind of head there is cannot be judged.
        folder: where the draft was exported to, for the flags.

    Raises:
        UserError: the wiring belongs to another target, or nothing is known of what the engine captures for this one.
    """
    target.require(wiring, "the wiring")
    row = judged.capture(target.architecture)
    nothing = [f"{judged.name} captures nothing for {target.architecture}"]
    reasons = (_tap_problems(wiring.taps, row, target) if row else nothing) + _head_problems(wiring, judged, target, draft)
    ids = None if row is None or reasons else ids_for(wiring.taps, row.meaning, target.num_layers)
    if row is not None and not reasons and ids is None:
        reasons = [f"no list of ids means {format_taps(wiring.taps)} here: an id is read as {row.meaning.value}"]
    if reasons or row is None or ids is None:
        return Plan(False, {}, (), (*reasons, *judged.notes(), *_elsewhere(wiring.taps, target)))
    order = tuple(sorted(range(len(wiring.taps)), key=lambda slot: wiring.taps[slot].boundary or 0))
    taps = tuple(wiring.taps[slot] for slot in order)
    config = config_keys(ids, wiring)
    fed = resolve(judged, target, config)
    assert (fed.problem, fed.taps) == (None, taps), f"planned {format_taps(taps)}, resolved {fed}"
    notes = _notes(judged, row, ids, order, draft)
    if folder == DRAFT_FOLDER:
        notes.append(f"{DRAFT_FOLDER} in the flags is the folder that eyas export writes")
    return Plan(True, config, launch_flags(judged, row, wiring.ttt_steps or 3, folder), tuple(notes), order, taps)


def ids_for(taps: tuple[Tap, ...], meaning: IdMeaning, num_layers: int) -> tuple[int, ...] | None:
    """Ids that mean these taps, or None if no list does. Their order is free: engines sort what they capture."""
    wanted = sorted(tap.boundary for tap in taps if tap.boundary is not None)
    shifted = [number - 1 for number in wanted]
    if len(set(wanted)) < len(taps) or not wanted:
        return None
    # An id of 1 in front would shift all others on some engines, so another one is put there.
    for ids in (wanted, wanted[1:] + wanted[:1], shifted):
        if sorted(meaning.boundaries(tuple(ids), num_layers)) == wanted:
            return tuple(ids)
    return None


def config_keys(ids: tuple[int, ...], wiring: Wiring) -> dict[str, Any]:
    """The ids under every key that any runner reads, so that all of them agree, and the switches where they are looked for."""
    nested: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(ids), "layer_ids": list(ids), "use_aux_hidden_state": True}
    config: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(ids), "num_aux_hidden_states": len(ids), "eagle_config": nested}
    for switch in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output"):
        value = getattr(wiring, switch)
        if value is not None:
            config[switch] = value
    return config


def _tap_problems(taps: tuple[Tap, ...], row: CaptureRow, target: TargetFacts) -> list[str]:
    if not taps:
        return ["the wiring names no taps"]
    boundaries = [tap.boundary for tap in taps]
    found = []
    if None in boundaries:
        found.append("tap final: no engine captures the state after the final norm")
    if len(set(boundaries)) < len(boundaries):
        found.append(f"taps {format_taps(taps)}: a state is read twice, and the engine drops repeated ones")
    if 0 in boundaries and row.no_embedding:
        found.append(f"tap embed: {row.no_embedding} ({row.file})")
    if target.num_layers in boundaries and row.no_last:
        found.append(f"tap {Tap(target.num_layers)}: {row.no_last} ({row.file})")
    return found


def _head_problems(wiring: Wiring, judged: Judged, target: TargetFacts, draft: DraftFacts | None) -> list[str]:
    """Why the engine would run this head in another way than it was trained; empty if it would not."""
    if draft is None:
        return []
    found = []
    if target.scales_embedding and wiring.embedding_source == "target":
        found.append("the target scales its embedding, and the engine shares the table without the scale")
    head = judged.head(draft.kind)
    if head is None:
        return [*found, f"{judged.name} has no {draft.kind} head for EAGLE-3"]
    missing = [feature for feature in draft.needs() if feature not in head.honours]
    return found + [f"{FEATURES[name]}: {head.why.get(name, 'not known to be honoured')} ({head.file})" for name in missing]


def _notes(judged: Judged, row: CaptureRow, ids: tuple[int, ...], order: tuple[int, ...], draft: DraftFacts | None) -> list[str]:
    notes = [*judged.notes(), f"an id is read as {row.meaning.value} ({row.file}; {row.evidence})"]
    if order != tuple(range(len(order))):
        notes.append(f"the engine sorts its states: eyas export puts slots {list(order)} of the draft in this order")
    if list(ids) != sorted(ids):
        notes.append(f"ids {list(ids)} are out of order on purpose: a leading 1 would shift them all")
    if row.fused_allreduce:
        notes.append(
            "with tensor parallelism and fused all-reduce a state is captured before the ranks have added up their shares: "
            "the fusion is switched on by itself on some GPUs (read, not run)"
        )
    if row.cp_unsafe:
        notes.append("do not use context parallelism in prefill: captured rows are not put back into order (read, not run)")
    if draft is None:
        notes.append("only the wiring was given: whether the engine runs this kind of draft was not judged")
    return notes


def _elsewhere(taps: tuple[Tap, ...], target: TargetFacts) -> list[str]:
    """Engines and versions that can capture these taps for this architecture."""
    found = []
    for engine in ENGINES.values():
        for row in engine.captures:
            fits = target.architecture in row.architectures and not _tap_problems(taps, row, target)
            if fits and ids_for(taps, row.meaning, target.num_layers) is not None:
                found.append(f"{engine.name} {row.versions} captures these taps for {target.architecture}")
    return found or [f"no version of {' or '.join(ENGINES)} that was read captures these taps for {target.architecture}"]
