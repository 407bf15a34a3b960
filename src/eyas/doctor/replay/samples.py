"""Samples of a dump, of Eyas or of another project, with whatever they hold: nothing is trusted, and nothing is refused.

Shapes: T positions, n slots, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from eyas.errors import UserError

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.opening.dump import Shard

_BYTES = 1 << 30  # of states that are read of a large dump
_KEYS = ("token_ids", "loss_mask", "states", "teacher", "top1")


@dataclass(frozen=True)
class RawSample:
    """token_ids, loss_mask [T]; states [T, n·H]; teacher [T, H] and top1 [T] are None where the dump has none.

    `taps` names what each slot is said to hold, None if nothing is said. `normed`: the teacher is said to stand after the norm.
    """

    id: str
    token_ids: torch.Tensor
    loss_mask: torch.Tensor
    states: torch.Tensor
    teacher: torch.Tensor | None
    top1: torch.Tensor | None
    taps: tuple[str, ...] | None
    normed: bool = True

    @property
    def answer_rows(self) -> torch.Tensor:
        """Positions p whose next token is the answer's."""
        rows = self.loss_mask[1 : len(self.token_ids)].nonzero().flatten()
        return rows[rows < len(self.token_ids) - 1]


def read_samples(exam: Examination) -> tuple[RawSample, ...]:
    """As many as fit the memory set aside, from all shards."""
    assert exam.dump is not None
    held, found = 0, []
    for sample in _eyas(exam) if exam.dump.is_eyas else _foreign(exam):
        found.append(sample)
        held += sample.states.numel() * sample.states.element_size()
        if held > _BYTES:
            exam.notes.append(f"of the dump, {len(found)} samples were read")
            break
    return tuple(found)


def _eyas(exam: Examination) -> Iterator[RawSample]:
    dump = exam.dump
    assert dump is not None
    taps = dump.wiring.get("taps")
    names = tuple(map(str, taps)) if isinstance(taps, list) and taps else None
    ids, plan = dump.ids, dump.manifest.value.get("batch_plan")
    shards = plan.get("shards") if isinstance(plan, dict) else None
    for number, shard in enumerate(dump.shards):
        order = _order(shards[number]) if isinstance(shards, list) and number < len(shards) else []
        for row, tensors in enumerate(_rows(shard)):
            name = ids[order[row]] if row < len(order) and order[row] < len(ids) else f"{shard.file.name}[{row}]"
            yield _sample(name, tensors, names)


def _order(shard: Any) -> list[int]:
    if not isinstance(shard, list):
        return []
    return [one for batch in shard if isinstance(batch, list) for one in batch if isinstance(one, int) and one >= 0]


def _rows(shard: Shard) -> Iterator[dict[str, torch.Tensor]]:
    """Each sample's tensors, cut by the shard's own offsets."""
    if shard.problem is not None or not {"token_ids", "states"} <= set(shard.tensors):
        return
    try:
        with safe_open(shard.file, framework="pt") as opened:
            names = [name for name in _KEYS if name in shard.tensors]
            total = shard.tensors["token_ids"].shape[0]
            offsets = opened.get_tensor("offsets").tolist() if "offsets" in shard.tensors else [0, total]
            for start, end in pairwise(offsets):
                if 0 <= start < end:
                    yield {name: opened.get_slice(name)[start:end] for name in names}
    except (OSError, SafetensorError, RuntimeError, ValueError, TypeError):
        return


def _sample(name: str, tensors: dict[str, torch.Tensor], taps: tuple[str, ...] | None) -> RawSample:
    ids = tensors["token_ids"].long()
    mask = tensors.get("loss_mask")
    top1 = tensors.get("top1")
    return RawSample(
        name,
        ids,
        mask.bool().flatten() if mask is not None else torch.ones_like(ids, dtype=torch.bool),
        tensors["states"].flatten(1),
        tensors.get("teacher"),
        None if top1 is None else top1.long(),
        taps,
    )


def _foreign(exam: Examination) -> Iterator[RawSample]:
    from eyas.formats.dumps.detect import dump_format

    assert exam.exhibits.dump is not None
    try:
        fmt = dump_format(exam.exhibits.dump)
        taps = _foreign_taps(exam, fmt)
        for file in fmt.files(exam.exhibits.dump):
            for sample in fmt.read(file):
                mask = sample.loss_mask
                yield RawSample(
                    sample.id,
                    sample.token_ids,
                    torch.ones_like(sample.token_ids, dtype=torch.bool) if mask is None else mask.bool(),
                    sample.states.flatten(1),
                    sample.last,
                    None,
                    taps,
                    sample.prenorm is not True and fmt.name not in ("speculators", "speculators-pt", "vllm"),
                )
    except UserError as error:
        exam.notes.append(f"reading the dump stopped: {' '.join(str(error).split())}")


def _foreign_taps(exam: Examination, fmt: Any) -> tuple[str, ...] | None:
    from eyas.formats.ids import to_taps

    assert exam.exhibits.dump is not None
    layers = exam.target.num_layers if exam.target else None
    ids = fmt.stated_ids(exam.exhibits.dump)
    if ids is None and fmt.default_ids is not None and layers:
        ids = fmt.default_ids(layers)
    try:
        return None if ids is None else tuple(map(str, to_taps(ids, fmt.convention, fmt.name)))
    except UserError:
        return None


def foreign_problem(exam: Examination) -> str | None:
    """Why a dump of another project cannot be read; None if its first file can."""
    from eyas.formats.dumps.detect import dump_format

    assert exam.exhibits.dump is not None
    try:
        fmt = dump_format(exam.exhibits.dump)
        for file in fmt.files(exam.exhibits.dump):
            for _ in fmt.read(file):
                pass
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a damaged file fails in any way it likes
        return f"{type(error).__name__}: {error}"
    return None
