"""A: which states are captured, said, and wanted."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.doctor.examination import Examination
from eyas.doctor.hypothesis import Evidence, Fault, Hypothesis, Outcome, confirmed, ruled_out, suspected, untestable
from eyas.taps import Tap

_KEEP_NO_IDS = ("eagle", "automodel", "eyas")


def named(boundaries: Sequence[int | None]) -> str:
    """As users write taps; numbers that are no boundary stay numbers."""
    return ",".join(str(Tap(one)) if one is None or one >= 0 else f"boundary {one}" for one in boundaries)


def default_boundaries(num_layers: int) -> list[int]:
    """What engines and projects capture if nothing is said."""
    return [2, num_layers // 2, num_layers - 3]


def _undeclared(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    layers = exam.target.num_layers if exam.target else None
    guess = f"; engines then take {named(default_boundaries(layers))}" if layers else "; engines then guess"
    if draft.boundaries is None and draft.dialect not in ("eagle", "automodel"):
        text = f"{draft.folder.name}: neither config.json nor a wiring beside it names the layers{guess}"
        return confirmed(Fault("taps-undeclared", "draft", (Evidence(text),), _DECLARE, weight=0.6))
    if draft.dialect not in _KEEP_NO_IDS and draft.config_boundaries is None and not draft.ids:
        wanted = draft.boundaries or []
        if layers and wanted != default_boundaries(layers):
            text = f"config.json names no layer ids{guess}; the wiring beside it says {named(wanted)}"
            return confirmed(Fault("taps-undeclared", "draft", (Evidence(text, {"wanted": wanted}),), _DECLARE, weight=0.7))
    if draft.boundaries is None:
        return suspected(f"{draft.dialect} checkpoints keep no layer ids{guess}")
    return ruled_out(f"the draft is said to read {named(draft.boundaries)}", boundaries=draft.boundaries)


_DECLARE = (
    "write the ids that the draft was trained with into config.json under eagle_aux_hidden_state_layer_ids; "
    "eyas wiring infer finds them, eyas export writes them as the engine reads them"
)


def _impossible(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    layers = exam.target.num_layers if exam.target else draft.said.get("num_target_layers")
    problems: list[str] = []
    for key, ids in draft.ids:
        odd = [one for one in ids if not isinstance(one, int) or isinstance(one, bool)]
        problems += [f"{key} = {ids} holds {odd[0]!r}, which is no layer id"] if odd else []
    if not problems and len({tuple(ids) for _, ids in draft.ids}) > 1:
        problems.append("two keys name different layers: " + ", ".join(f"{key} = {ids}" for key, ids in draft.ids))
    for words, found in (("the wiring", draft.boundaries), ("config.json", draft.config_boundaries)):
        problems += _odd(words, found, layers, draft.num_slots) if found is not None else []
    taps = draft.said.get("taps")
    if isinstance(taps, list) and taps and draft.boundaries is None:
        problems.append(f"the wiring names states that there are not: {taps}")
    if problems:
        evidence = tuple(Evidence(text) for text in dict.fromkeys(problems))
        return confirmed(Fault("taps-impossible", "draft", evidence, _DECLARE, weight=0.85))
    return ruled_out(f"every named state exists, and there are {draft.num_slots} for {draft.num_slots} slots")


def _odd(where: str, boundaries: Sequence[int | None], layers: object, slots: int | None) -> list[str]:
    found = []
    real = [one for one in boundaries if one is not None]
    if any(one < 0 for one in real) or (isinstance(layers, int) and any(one > layers for one in real)):
        found.append(f"{where} asks for {named(boundaries)}; the target has boundaries 0 to {layers if layers else 'N'}")
    if len(set(boundaries)) < len(boundaries):
        found.append(f"{where} names a state twice: {named(boundaries)}")
    if slots is not None and len(boundaries) != slots:
        found.append(f"{where} names {len(boundaries)} states, and fc has columns for {slots}")
    return found


def _contradicted(exam: Examination) -> Outcome:
    draft = exam.draft
    assert draft is not None
    said, config = draft.boundaries, draft.config_boundaries
    if draft.is_eyas or config is None or not draft.said.get("taps"):
        return untestable("the states are named in one place only")
    if said == config:
        return ruled_out(f"config.json and the wiring beside it both mean {named(config)}")
    text = f"config.json's ids {draft.ids[0][1]} mean {named(config)} to {draft.dialect}; the wiring beside them says {named(said or [])}"
    code = "slot-order" if sorted(map(str, said or [])) == sorted(map(str, config)) else _shift_code(said or [], config)
    remedy = f"write the ids that mean {named(said or [])}: eyas export does it for the format or engine"
    return confirmed(Fault(code, "draft", (Evidence(text, {"said": said, "config": config}),), remedy, weight=0.8))


def _shift_code(left: Sequence[int | None], right: Sequence[int | None]) -> str:
    steps = {a - b for a, b in zip(left, right, strict=False) if a is not None and b is not None}
    return "taps-shifted" if len(left) == len(right) and steps in ({1}, {-1}) else "taps-other"


def _teacher(exam: Examination) -> Outcome:
    found = []
    for name, wiring in (("draft", exam.draft.said if exam.draft else {}), ("dump", exam.dump.wiring if exam.dump else {})):
        teacher, layers = wiring.get("teacher"), wiring.get("num_target_layers")
        if isinstance(teacher, str) and isinstance(layers, int) and teacher not in ("final", f"layer:{layers - 1}", f"boundary:{layers}"):
            text = (
                f"the {name} was made with labels from {teacher}; only final (layer:{layers - 1} before its norm) gives the target's tokens"
            )
            found.append(Fault("teacher-layer", name, (Evidence(text, {"teacher": teacher}),), _RELABEL, weight=0.75))
        elif wiring.get("teacher_norm_applied") is False:
            text = f"the {name}'s record says that its labels come from a state without the final norm, which head and loss expect"
            found.append(Fault("teacher-norm", name, (Evidence(text),), _RELABEL, weight=0.75))
        elif wiring.get("teacher_verified") is False or (name == "dump" and exam.dump and exam.dump.manifest.value.get("wrong_teacher")):
            text = f"the {name}'s record says that its labels failed the check against the target's own tokens (teacher {teacher})"
            found.append(Fault("teacher-layer", name, (Evidence(text),), _RELABEL, weight=0.7, shadow=("teacher-norm",)))
    return confirmed(*found) if found else ruled_out("no record names another teacher than the target's last state")


_RELABEL = "capture again with --teacher final and train on that dump; labels of another layer cannot be mended afterwards"


def _engine(exam: Examination) -> Outcome:
    from eyas.doctor.engine_view import tap_faults

    return tap_faults(exam)


def _fed_by_engine(exam: Examination) -> Outcome:
    from eyas.doctor.replay.engine_feed import measure_feed

    return measure_feed(exam)


def _searched(exam: Examination) -> Outcome:
    from eyas.doctor.replay.taps import search_taps

    return search_taps(exam)


def _learnt_teacher(exam: Examination) -> Outcome:
    from eyas.doctor.replay.teacher import learnt_teacher

    return learnt_teacher(exam)


HYPOTHESES = (
    Hypothesis(
        "taps-undeclared",
        "static",
        "the engine guesses which states to feed, because nothing names them",
        ("draft",),
        "look for layer ids and for a wiring beside the checkpoint",
        "neither is there",
        _undeclared,
        prior=0.3,
    ),
    Hypothesis(
        "taps-impossible",
        "static",
        "the layer ids cannot be captured, or do not fit fc",
        ("draft",),
        "compare ids with the target's layers and fc's columns",
        "an id is out of range or repeated, or their number is another",
        _impossible,
        prior=0.3,
    ),
    Hypothesis(
        "taps-other",
        "static",
        "config and wiring name different states",
        ("draft",),
        "read both, each in its own meaning",
        "they differ",
        _contradicted,
        prior=0.2,
    ),
    Hypothesis(
        "teacher-layer",
        "static",
        "the draft learnt somebody else's tokens: its labels came from another layer",
        (),
        "read the records of dump and draft",
        "the teacher is not the last state",
        _teacher,
        prior=0.2,
    ),
    Hypothesis(
        "taps-engine",
        "static",
        "this engine version feeds other states than the draft reads",
        ("draft", "target", "engine"),
        "work out what the engine captures for this config and architecture",
        "other states, or an error",
        _engine,
        prior=0.5,
    ),
    Hypothesis(
        "taps-other",
        "replay",
        "the draft was trained on other states than it is fed",
        ("draft", "replay"),
        "feed it other states of the target and compare how well it predicts",
        "with the right states accuracy rises",
        _searched,
        prior=0.6,
        seconds=1.5,
    ),
    Hypothesis(
        "teacher-layer",
        "replay",
        "the draft learnt the tokens of another layer",
        ("draft", "replay", "layers"),
        "compare what it proposes with what each state would say through the target's head",
        "it agrees with an inner layer more than with the target",
        _learnt_teacher,
        prior=0.03,
        seconds=2.0,
        last=True,
    ),
    Hypothesis(
        "taps-engine",
        "replay",
        "what this engine version feeds costs the draft accuracy",
        ("draft", "target", "engine", "replay"),
        "feed the draft, mended as far as it could be, what the engine would feed it",
        "it predicts less",
        _fed_by_engine,
        prior=0.5,
        seconds=0.5,
        last=True,
    ),
)
