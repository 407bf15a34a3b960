"""What an engine and version would do with this checkpoint on this target, by the tables of `eyas.engines`: no torch, no run."""

from __future__ import annotations

from typing import Any

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.doctor.opening.draft import SWITCHES, DraftFiles
from eyas.doctor.opening.expected import mla_sizes, sidecar_config, vocabulary
from eyas.engines.catalog import parse_engine
from eyas.engines.draft_facts import FEATURES, DraftFacts
from eyas.engines.resolve import Fed, resolve
from eyas.engines.rows import Judged
from eyas.engines.target_facts import TargetFacts
from eyas.taps import Tap, format_taps


def tap_faults(exam: Examination) -> Outcome:
    """What would be fed, against what the draft is said to read."""
    draft, target = exam.draft, exam.target
    assert draft is not None
    assert target is not None
    if exam.exhibits.engine == "embedded":
        return untestable("the embedded engine feeds what the wiring says")
    judged = parse_engine(str(exam.exhibits.engine))
    facts = TargetFacts.of(target.config.value, str(target.folder / "config.json"))
    if draft.is_eyas:
        return _eyas_draft(draft, judged, facts)
    fed = resolve(judged, facts, draft.config.value)
    if fed.problem is not None:
        return confirmed(_fault("taps-engine", f"{judged.name}: {fed.problem}", fed, judged))
    wanted = draft.boundaries
    if wanted is None:
        return suspected(
            f"{judged.name} feeds {format_taps(fed.taps)} from {fed.source}; what the draft reads is not said", fed=_names(fed)
        )
    taps = tuple(Tap(one) for one in wanted)
    if fed.taps == taps:
        return ruled_out(f"{judged.name} feeds {format_taps(fed.taps)} from {fed.source}, as the draft wants", fed=_names(fed))
    same = sorted(map(str, fed.taps)) == sorted(map(str, taps))
    words = "in this order, whatever the order of the ids" if same else f"from {fed.source} = {list(fed.ids)}"
    text = f"{judged.name} feeds {format_taps(fed.taps)} {words}; the draft reads {format_taps(taps)}"
    return confirmed(_fault("slot-order" if same else "taps-engine", text, fed, judged))


def fed_taps(exam: Examination) -> tuple[Judged, tuple[Tap, ...]] | None:
    """The engine and what it would feed this checkpoint as it is; None if it feeds nothing, or whatever the wiring says."""
    draft, target = exam.draft, exam.target
    if draft is None or target is None or draft.is_eyas or exam.exhibits.engine in (None, "embedded"):
        return None
    judged = parse_engine(str(exam.exhibits.engine))
    fed = resolve(judged, TargetFacts.of(target.config.value, str(target.folder / "config.json")), draft.config.value)
    return None if fed.problem is not None else (judged, fed.taps)


def head_faults(exam: Examination, codes: tuple[str, ...]) -> Outcome:
    """Which of the draft's features the engine does not honour; `codes` are those that the caller answers for."""
    draft, target = exam.draft, exam.target
    assert draft is not None
    assert target is not None
    if exam.exhibits.engine == "embedded":
        return untestable("the embedded engine runs every draft that Eyas reads")
    judged = parse_engine(str(exam.exhibits.engine))
    facts = DraftFacts(_facts(draft))
    head = judged.head(facts.kind)
    if head is None:
        faults = [("architecture-engine", f"{judged.name} has no {facts.kind} head for EAGLE-3")]
    else:
        lost = [name for name in facts.needs() if name not in head.honours]
        faults = [(_code(name), f"{judged.name}: {FEATURES[name]}: {head.why.get(name, 'not known to be honoured')}") for name in lost]
    found = [
        Fault(
            code,
            "engine",
            (Evidence(text),),
            f"use an engine version that honours it: eyas wiring translate --to {judged.engine.name}==V",
            0.7,
        )
        for code, text in faults
        if code in codes
    ]
    return confirmed(*found) if found else ruled_out(f"{judged.name} honours what this draft needs")


def _eyas_draft(draft: DraftFiles, judged: Judged, facts: TargetFacts) -> Outcome:
    """An Eyas draft is exported first: the question is whether any keys make the engine feed it."""
    from eyas.engines.plan import plan
    from eyas.wiring import Wiring

    wiring = Wiring.from_json(draft.wiring.value, str(draft.folder / "wiring.json"))
    found = plan(wiring, judged, facts)
    if found.reachable:
        return ruled_out(f"exported for it, {judged.name} feeds {format_taps(found.taps)}", ids=dict(found.config))
    text = f"{judged.name} cannot feed {format_taps(wiring.taps)}: {found.notes[0]}"
    others = tuple(Evidence(note) for note in found.notes[1:])
    return confirmed(Fault("taps-engine", "engine", (Evidence(text), *others), "use an engine and version that the notes name", 0.8))


def export_for(judged: Judged) -> str:
    """The remedy for a feed that is not the draft's."""
    return f"export the draft for it: eyas export --to {judged.engine.name}=={judged.asked}; it writes the ids and the order that it reads"


def _fault(code: str, text: str, fed: Fed, judged: Judged) -> Fault:
    return Fault(code, "engine", (Evidence(text, {"fed": _names(fed), "ids": list(fed.ids)}),), export_for(judged), 0.85)


def _names(fed: Fed) -> list[str]:
    return [str(tap) for tap in fed.taps]


def _code(feature: str) -> str:
    return "norm-engine" if feature in SWITCHES else "architecture-engine"


def _facts(draft: DraftFiles) -> dict[str, Any]:
    """The draft's config as `DraftFacts` reads it: what the weights show, what the config says, what lies beside it."""
    known = dict(sidecar_config(draft)) | draft.stated
    own, whole_ones = vocabulary(draft)
    shown = {
        "fc_bias": draft.has("fc.bias"),
        "qk_norm": draft.has("midlayer.self_attn.q_norm.weight"),
        "attention_bias": draft.has("midlayer.self_attn.q_proj.bias"),
        "mlp_bias": draft.has("midlayer.mlp.gate_proj.bias"),
        "own_embedding": draft.has("embed_tokens.weight"),
        "norm_before_fc": draft.has("input_norm.weight"),
        "fc_norm": draft.has("fc_norm.0.weight"),
    }
    rope = draft.layer.get("rope_parameters") or draft.layer.get("rope_scaling") or {"rope_type": "default"}
    defaults: dict[str, Any] = {
        "hidden_size": 0,
        "target_hidden_size": known.get("hidden_size", 0),
        "hidden_act": "silu",
        "rope_parameters": rope,
        "num_taps": draft.num_slots or 3,
        "mla": mla_sizes(draft),
        "lm_head_source": "draft" if draft.has("lm_head.weight") else "target",
        "norm_before_residual": False,
        "norm_output": False,
    }
    return {**defaults, "draft_vocab_size": own, "vocab_size": whole_ones, **known, **shown}
