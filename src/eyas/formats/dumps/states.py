"""Captured states from whatever file they stand in, for `eyas trace check`: as they are, with nothing required but tokens.

Here rows may be fewer than tokens and slots narrower than the hidden size: finding that out is what the check is for.

Shapes: T tokens, R rows, n slots, H hidden size, W width of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.capture.check import Capture
from eyas.capture.fingerprint import MIN_POSITIONS, SINK_POSITIONS
from eyas.data.store import Dump
from eyas.errors import UserError
from eyas.formats.dumps.detect import dump_format, is_eyas_dump
from eyas.formats.dumps.files import get_ids, scaled
from eyas.formats.safe import read_tensors
from eyas.progress import console, counted
from eyas.taps import Tap

_ENOUGH = MIN_POSITIONS + SINK_POSITIONS
_PADDING = 64  # rows: prefills are padded to whole blocks, or to a multiple of twice the context-parallel ranks
_MOST_TEXTS = 64  # looked at for one that is long enough


@dataclass(frozen=True)
class _Text:
    token_ids: tuple[int, ...]
    states: torch.Tensor  # [R, n, W]


def read_capture(
    path: Path, hidden_size: int, num_slots: int | None, begins_with: Sequence[int] | None
) -> tuple[Capture, tuple[Tap, ...] | None]:
    """One rank's capture, of as many texts as a verdict needs, and the taps that the file itself claims, if it does.

    Args:
        num_slots: how many states a flat row holds, where their width does not tell.
        begins_with: the tokens wanted (a trace's); None takes any text that is long enough.

    Raises:
        UserError: a file that cannot be read, or that holds no states.
    """
    claimed: tuple[Tap, ...] | None = None
    if is_eyas_dump(path):
        dump = Dump(path)
        claimed = dump.wiring.taps
        texts = _of_dump(dump, hidden_size)
    elif path.suffix == ".safetensors" and path.is_file():
        texts = iter([_of_safetensors(path, hidden_size, num_slots)])
    else:
        texts = _of_foreign(path)
    chosen = _choose(texts, begins_with)
    if not chosen:
        raise UserError(f"{path} holds no states")
    return Capture(tuple(text.token_ids for text in chosen), tuple(text.states for text in chosen), str(path)), claimed


def _of_dump(dump: Dump, hidden_size: int) -> Iterator[_Text]:
    for index in range(dump.num_samples):
        sample = dump.sample(index)
        yield _Text(tuple(sample.token_ids.tolist()), _slots(sample.states, hidden_size, len(dump.wiring.taps), dump.path))


def _of_foreign(path: Path) -> Iterator[_Text]:
    found = dump_format(path)
    for file in found.files(path):
        for sample in found.read(file):
            if sample.first_token_missing:
                raise UserError(
                    f"{path}: {found.name} does not store the first token, so the states cannot be compared", remedy="eyas import finds it"
                )
            parts = [sample.states] if sample.last is None else [sample.states, sample.last[:, None]]
            yield _Text(tuple(sample.token_ids.tolist()), torch.cat(parts, dim=1))


def _of_safetensors(path: Path, hidden_size: int, num_slots: int | None) -> _Text:
    tensors = read_tensors(path)[0]
    ids = get_ids(tensors, "token_ids", path)
    states = scaled(tensors, "hidden_states", path)
    if not states.is_floating_point() or states.ndim not in (2, 3) or 0 in states.shape:
        raise UserError(f"{path}: hidden_states must be [rows, n, H] or [rows, n*H] in floats", got=f"{states.dtype} {list(states.shape)}")
    spare = len(states) - len(ids)
    if spare > _PADDING:
        raise UserError(
            f"{path}: there are more rows than tokens",
            got=f"{len(states)} rows, {len(ids)} tokens",
            allowed=f"up to {_PADDING} rows of padding",
            remedy="cut off padding, or give all tokens",
        )
    if spare > 0:
        console.print(f"{path}: {counted(spare, 'row')} more than tokens, taken for padding", markup=False, highlight=False)
    return _Text(tuple(ids.tolist()), states if states.ndim == 3 else _slots(states, hidden_size, num_slots, path))


def _slots(flat_RW: torch.Tensor, hidden_size: int, num_slots: int | None, path: Path) -> torch.Tensor:
    """Whole states, unless these are fewer than the slots that were stated: under tensor parallelism slots are narrower."""
    width = flat_RW.shape[1]
    whole = width // hidden_size if width % hidden_size == 0 else 0
    count = whole if whole >= max(1, num_slots or 0) else num_slots or 0
    if count < 1 or width % count:
        raise UserError(
            f"{path}: rows are not a whole number of states", got=width, allowed=f"a multiple of {hidden_size}", remedy="give --taps"
        )
    return flat_RW.unflatten(1, (count, width // count))


def _choose(texts: Iterator[_Text], begins_with: Sequence[int] | None) -> list[_Text]:
    """The text that begins as wanted; else the first that is long enough alone; else the longest together."""
    seen: list[_Text] = []
    for text in texts:
        if begins_with is None and len(text.token_ids) >= _ENOUGH:
            return [text]
        shared = min(len(text.token_ids), len(begins_with or ()))
        if begins_with is not None and shared >= MIN_POSITIONS and list(text.token_ids[:shared]) == list(begins_with[:shared]):
            return [text]
        seen.append(text)
        if len(seen) >= _MOST_TEXTS:
            break
    seen.sort(key=lambda text: -len(text.token_ids))
    chosen: list[_Text] = []
    while seen and sum(len(text.token_ids) for text in chosen) < _ENOUGH:
        chosen.append(seen.pop(0))
    return chosen
