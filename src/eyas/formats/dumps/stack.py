"""Stacked states in safetensors: speculators from 0.5 on (`hs_{i}.safetensors`) and vLLM's `extract_hidden_states`.

    token_ids i64 [T]; hidden_states [T, n, H]; hs-connectors may store e4m3 with hidden_states_scales f32 [T, 1, 1]

Both come out of vLLM, so an id is a boundary, and the state behind the last layer is before the final norm. speculators
appends N to its ids: the last state of the stack is the one that labels come from. The loss mask lives in the prepared
data set beside it, not in these files; a `loss_mask` in a file is read all the same. (Read in speculators 0.5.0
train/data.py, vLLM 0.32 example_hidden_states_connector.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eyas.errors import UserError
from eyas.formats.dumps.files import files_below, get_ids, get_mask, get_states, scaled
from eyas.formats.dumps.sample import DumpFormat, ForeignSample
from eyas.formats.safe import read_tensors

_KEYS = {"token_ids", "hidden_states", "hidden_states_scales", "loss_mask"}


def _hs_files(path: Path) -> list[Path]:
    return [file for file in files_below(path, ".safetensors") if file.name.startswith("hs_")]


def _request_files(path: Path) -> list[Path]:
    """All of them, if any holds a stack: one that does not, or is damaged, is an error then and not left out."""
    found = [file for file in files_below(path, ".safetensors") if not file.name.startswith("hs_")]
    return found if any(_holds_a_stack(file) for file in found) else []


def _holds_a_stack(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            return {"token_ids", "hidden_states"} <= set(opened.keys())
    except (OSError, SafetensorError):
        return False


def _read(last_in_stack: bool, path: Path) -> Iterator[ForeignSample]:
    tensors = read_tensors(path)[0]
    spare = sorted(set(tensors) - _KEYS)
    if spare:
        raise UserError(f"{path} holds keys that nothing reads", got=spare, allowed=sorted(_KEYS))
    ids = get_ids(tensors, "token_ids", path)
    eight_bit = "hidden_states_scales" in tensors
    if eight_bit:
        tensors["hidden_states"] = scaled(tensors, "hidden_states", path).bfloat16()
    states_TnH = get_states(tensors, "hidden_states", path, len(ids))
    if states_TnH.ndim != 3 or (last_in_stack and states_TnH.shape[1] < 2):
        raise UserError(f"{path}: hidden_states must be a stack", got=list(states_TnH.shape), allowed="[tokens, states, hidden size]")
    mask = get_mask(tensors, "loss_mask", path, len(ids))
    last = states_TnH[:, -1] if last_in_stack else None
    yield ForeignSample(path.stem, ids, states_TnH[:, :-1] if last_in_stack else states_TnH, last, mask, eight_bit=eight_bit)


SPECULATORS = DumpFormat(
    name="speculators",
    convention="boundary",
    files=_hs_files,
    read=lambda path: _read(True, path),
    default_ids=lambda layers: [2, layers // 2, layers - 3],
    said="speculators 0.5 and later: ids are vLLM's boundaries, N is appended for the labels",
    last_in_stack=True,
)
VLLM = DumpFormat(
    name="vllm",
    convention="boundary",
    files=_request_files,
    read=lambda path: _read(False, path),
    default_ids=None,
    said="vLLM extract_hidden_states: an id is a boundary; the ids are chosen at launch and not stored",
)
