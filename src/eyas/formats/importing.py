"""A checkpoint of another project in, as an Eyas draft; nothing that decides what the draft is fed is guessed in silence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from eyas.capture.fingerprint import Trace
from eyas.data.store import is_dump
from eyas.draft.checkpoint import check_rope, check_vocab_map, draft_wiring_fields, filled, is_draft, save_draft
from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError
from eyas.files import check_folder_free, metadata_of
from eyas.formats.against_target import compare_with_target
from eyas.formats.base import Format, Source
from eyas.formats.detect import detect
from eyas.formats.ids import IN_WORDS, Meaning, check_meaning, for_vllm_alone, ids_of, to_taps, unread_ids
from eyas.formats.registry import FORMATS, format_of
from eyas.formats.report import ImportReport
from eyas.formats.safe import CONFIG, Foreign, read_foreign
from eyas.formats.sidecar import SIDECAR, TRACE, Sidecar, read_sidecar
from eyas.formats.tensors import check_frequencies, check_tensors, doubts_on_map, renamed, with_maps
from eyas.taps import Tap, format_taps
from eyas.targets.describe import target_wiring
from eyas.wiring import WIRING_HASH, Wiring, require_match

_TO_INFER = "or leave them open with --taps unknown and find them out with eyas wiring infer"
_OPEN = "which states the draft reads is left open: eyas wiring infer finds it out; then import it again with --taps"


@dataclass(frozen=True)
class Said:
    """What the user said beside the checkpoint: `taps` are () if nobody knows them, `target_wiring` is that of the target."""

    taps: tuple[Tap, ...] | None = None
    meaning: Meaning | None = None
    target_wiring: Wiring | None = None


def import_draft(
    folder: Path,
    out: Path,
    *,
    source: str = "auto",
    taps: tuple[Tap, ...] | None = None,
    convention: str | None = None,
    target: str | None = None,
    trust_remote_code: bool = False,
) -> ImportReport:
    """Read the checkpoint in `folder` and write it to `out` as an Eyas draft.

    Args:
        source: the project that wrote it; `auto` tells it from config and keys.
        taps: the states that the draft reads, if the checkpoint does not say or says it wrongly; () leaves them open, and
            the draft can be used for nothing but finding them out.
        convention: what a layer id means, `boundary` or `output`, if it is not what the project's ids mean.
        target: folder or hub id; fills what only the target knows, and embedding and head are compared with its own.

    Raises:
        UserError: files missing, damaged or hostile; a draft that cannot be carried; taps that nothing tells; `out` in use.
        WiringError: the target is another than the draft was made for.
    """
    if is_draft(folder):
        raise UserError(f"{folder} is an Eyas draft already", remedy="copy it, or export it: eyas export")
    if is_dump(folder):
        raise UserError(f"{folder} is an Eyas dump already", remedy="train on it: eyas train --dump; or copy it")
    check_folder_free(out)
    said = Said(taps, check_meaning(convention), target_wiring(target, trust_remote_code) if target is not None else None)
    sidecar = read_sidecar(folder, list(FORMATS))
    foreign = read_foreign(folder)
    fmt, notes = _whose(foreign, source, sidecar)
    tensors, origins, found = renamed(foreign, fmt)
    notes += found + _unread(foreign)
    described = Source(
        foreign.config, {name: tensor.shape for name, tensor in tensors.items()}, _layer_prefix(origins), str(folder / CONFIG)
    )
    reading = fmt.read(described)
    config, assumed = reading.settle(sidecar.config if sidecar else None, str(folder / SIDECAR))
    assumed += doubts_on_map(tensors, config)
    notes += reading.notes + with_maps(tensors, config, foreign, fmt)
    check_tensors(tensors, origins, config, foreign, fmt)
    draft = filled(config, tensors).eval().requires_grad_(False)
    check_vocab_map(draft, foreign.where("d2t"))
    check_rope(draft, described.where)
    check_frequencies(foreign, draft.midlayer.rope.inv_freq)
    wiring, more_assumed, more_notes = _wiring(draft, described, fmt, sidecar, said)
    _check_hash(foreign, sidecar)
    if target is not None and Path(target).is_dir():
        more_notes += compare_with_target(draft, Path(target))
    assumed, notes = [*assumed, *more_assumed], [*notes, *more_notes]
    save_draft(out, draft, wiring, _trace(folder, sidecar), _card(folder, fmt, wiring, assumed, notes), dtype=None)
    return ImportReport(sorted(path.name for path in out.iterdir()), wiring, assumed, notes, fmt.name)


def _whose(foreign: Foreign, source: str, sidecar: Sidecar | None) -> tuple[Format, list[str]]:
    if source != "auto":
        fmt = format_of(source)
        if sidecar is not None and sidecar.format != fmt.name:
            raise UserError(f"{foreign.folder / SIDECAR} says that this is another format", got=fmt.name, allowed=sidecar.format)
        return fmt, []
    if sidecar is not None:
        return format_of(sidecar.format), []
    name, why = detect(foreign)
    return format_of(name), [f"read as a checkpoint of {format_of(name).title}: {why}"]


def _unread(foreign: Foreign) -> list[str]:
    """Of what sounds as if it counted, but does not."""
    notes = [f"{key} = {value} of {CONFIG} was not read" for key, value in unread_ids(foreign.config).items()]
    weights = {path.name for pattern in ("*.safetensors", "pytorch_model*.bin") for path in foreign.folder.glob(pattern)}
    return notes + [f"{name} was not read, but {foreign.weight_files[0]}" for name in sorted(weights - {*foreign.weight_files})]


def _layer_prefix(origins: dict[str, str]) -> str:
    found = re.search(r"(midlayer\.|layers\.0\.)hidden_norm\.weight$", origins.get("midlayer.hidden_norm.weight", ""))
    return found[1] if found is not None else ""


def _wiring(draft: Eagle3Draft, source: Source, fmt: Format, sidecar: Sidecar | None, said: Said) -> tuple[Wiring, list[str], list[str]]:
    """The draft's wiring, what was assumed for it, and notes."""
    own = Wiring(
        target_hidden_size=draft.config.target_hidden_size,
        target_vocab_size=draft.config.vocab_size,
        loss_mask_rule=None,
        **draft_wiring_fields(draft),
    )
    base = own
    if sidecar is not None:
        require_match(sidecar.wiring, SIDECAR, own, "the checkpoint")
        base = sidecar.wiring
    if said.target_wiring is not None:
        require_match(base, "the draft", said.target_wiring, "the target")
        base = _completed(base, said.target_wiring)
    taps, assumed, notes = _taps(source, fmt, sidecar, said, base.num_target_layers)
    if taps and len(taps) != draft.config.num_taps:
        raise UserError(
            f"{source.where}: fc reads another number of states",
            got=f"{format_taps(taps)}",
            allowed=f"{draft.config.num_taps} states of {draft.config.target_hidden_size} columns",
            remedy="name as many states with --taps; a config without target_hidden_size needs it if the draft is of another width",
        )
    if base.num_target_layers is not None:
        for tap in taps:
            tap.check(base.num_target_layers)
    return base.replace(taps=taps), assumed, notes


def _completed(wiring: Wiring, target: Wiring) -> Wiring:
    """What only the target knows, filled in where the checkpoint says nothing."""
    names = ("num_target_layers", "tokenizer_hash", "target_name", "chat_template_hash")
    return wiring.replace(**{name: getattr(target, name) for name in names if getattr(wiring, name) is None})


def _taps(
    source: Source, fmt: Format, sidecar: Sidecar | None, said: Said, num_layers: int | None
) -> tuple[tuple[Tap, ...], list[str], list[str]]:
    if said.taps == ():
        return (), [], [_OPEN]
    ids = ids_of(source.config, source.where)
    meaning, why = _meaning(source, fmt, said)
    read = to_taps(ids, meaning, source.where) if ids is not None and meaning is not None and not _for_engine(sidecar) else None
    if said.taps is not None:
        if read not in (None, said.taps):
            return (
                said.taps,
                [],
                [f"--taps {format_taps(said.taps)} was taken; the ids {ids} of the checkpoint mean {format_taps(read or ())} ({why})"],
            )
        return said.taps, [], []
    if sidecar is not None:
        if read not in (None, sidecar.wiring.taps):
            raise UserError(
                f"{SIDECAR} contradicts {source.where}",
                got=f"ids {ids} mean {format_taps(read or ())} ({why})",
                allowed=format_taps(sidecar.wiring.taps),
                remedy=f"one of the two was edited; remove {SIDECAR} to go by the checkpoint alone, or name the states with --taps",
            )
        return sidecar.wiring.taps, [], []
    if read is not None:
        return read, [f"taps = {format_taps(read)}: {why}, and the ids are {ids}"], []
    return _default_taps(source, fmt, num_layers, ids)


def _meaning(source: Source, fmt: Format, said: Said) -> tuple[Meaning | None, str]:
    if said.meaning is not None:
        return said.meaning, f"--convention says that id i is {IN_WORDS[said.meaning]}"
    if for_vllm_alone(source.config, source.where):
        return "boundary", f"vLLM alone reads eagle_config.layer_ids, so id i is {IN_WORDS['boundary']}"
    special = fmt.meaning_here(source)
    if special is not None:
        return special[0], f"{special[1]}, so id i is {IN_WORDS[special[0]]}"
    if fmt.ids_mean is None:
        return None, ""
    return fmt.ids_mean, f"in {fmt.title} id i is {IN_WORDS[fmt.ids_mean]}"


def _default_taps(
    source: Source, fmt: Format, num_layers: int | None, ids: list[int] | None
) -> tuple[tuple[Tap, ...], list[str], list[str]]:
    if ids is not None:
        raise UserError(
            f"{source.where} has layer ids, but {fmt.title} keeps none, so what they mean is not known",
            got=ids,
            remedy=f"say it with --convention boundary or --convention output, or name the states with --taps; {_TO_INFER}",
        )
    unread = unread_ids(source.config)
    if unread:
        raise UserError(
            f"{source.where} names layers under a key that {fmt.title} does not use, so what they mean is not known",
            got=", ".join(f"{key} = {value}" for key, value in unread.items())[:200],
            remedy=f"name the states with --taps; {_TO_INFER}",
        )
    if num_layers is None:
        raise UserError(
            f"{source.where} does not say which states the draft reads",
            remedy=f"name them with --taps, or give --target: then the project's default is taken, and said; {_TO_INFER}",
        )
    boundaries = fmt.default_taps(source.config, num_layers)
    if len(set(boundaries)) != len(boundaries) or min(boundaries) < 0 or max(boundaries) > num_layers:
        raise UserError(
            f"{fmt.title}'s default states do not exist in a target of {num_layers} layers", remedy="name the states with --taps"
        )
    taps = tuple(Tap(boundary) for boundary in boundaries)
    return taps, [f"taps = {format_taps(taps)}: no ids are kept, and this is {fmt.title}'s default for {num_layers} layers"], []


def _for_engine(sidecar: Sidecar | None) -> bool:
    """Ids that were written for one engine do not mean what the format's own do."""
    return sidecar is not None and bool(sidecar.engine_keys)


def _check_hash(foreign: Foreign, sidecar: Sidecar | None) -> None:
    if sidecar is not None and foreign.weight_files[0].endswith(".safetensors"):
        path = foreign.folder / foreign.weight_files[0]
        sidecar.wiring.require_hash(metadata_of(path).get(WIRING_HASH), str(path), str(foreign.folder / SIDECAR))


def _trace(folder: Path, sidecar: Sidecar | None) -> Path | None:
    """The target's trace, if one lies beside the checkpoint. Raises UserError for one that is damaged or another than the wiring's."""
    path = folder / TRACE
    if sidecar is None or not path.exists():
        return None
    found, wanted = Trace.load(path).hash(), sidecar.wiring.trace_hash
    if wanted not in (None, found):
        raise UserError(
            f"{path} is not the trace that {SIDECAR} speaks of",
            got=f"{found[:16]}...",
            allowed=f"{wanted[:16]}..." if wanted else None,
            remedy="files of two folders were mixed: copy the folder again, whole",
        )
    return path


def _card(folder: Path, fmt: Format, wiring: Wiring, assumed: list[str], notes: list[str]) -> str:
    lines = [
        f"# EAGLE-3 draft from {fmt.title}",
        "",
        f"Imported from `{folder.resolve().name}`; "
        + (f"it reads {format_taps(wiring.taps)}, in this order." if wiring.taps else "which states it reads is not known."),
        "",
    ]
    for title, items in (("Assumed, because nothing said it", assumed), ("Notes", notes)):
        if items:
            lines += [f"## {title}", "", *[f"- {item}" for item in items], ""]
    return "\n".join(lines)
