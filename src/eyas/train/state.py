"""Checkpoints of a run: parameters, optimizer moments and counters, enough to go on bit for bit.

RUN/run.json            settings, dump and, once known, the number of steps
RUN/step-0000400/       draft.safetensors, optimizer.safetensors, state.json; the newest two are kept

The order of batches is a function of the step and nothing draws random numbers, so there is no other state.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError
from eyas.files import atomic_folder, read_json, write_json

KEEP = 2


class RunFolder:
    """The working folder of one run. Raises UserError if it belongs to a run with other settings."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        file = path / "run.json"
        if file.exists():
            self._run = read_json(file, "the training run's record")
            begun = self._run.get("identity")
            if not isinstance(begun, dict) or not isinstance(self._run.get("total_steps", ""), int | None):
                raise UserError(f"{file} was edited or is damaged", remedy=f"remove {path} to begin again")
            differing = {key: (begun.get(key), value) for key, value in identity.items() if begun.get(key) != value}
            if differing:
                raise UserError(
                    f"{path} holds an unfinished training with other settings",
                    got=", ".join(f"{key} = {new}" for key, (_, new) in differing.items()),
                    allowed=", ".join(f"{key} = {old}" for key, (old, _) in differing.items()),
                    remedy=f"repeat the settings to go on, or remove {path} to begin again",
                )
        else:
            self._run = {"identity": identity, "total_steps": None}
            write_json(file, self._run)

    @property
    def total_steps(self) -> int | None:
        value = self._run["total_steps"]
        return None if value is None else int(value)

    def fix_total_steps(self, total: int) -> None:
        self._run["total_steps"] = total
        write_json(self.path / "run.json", self._run)

    def save(self, step: int, draft: Eagle3Draft, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        with atomic_folder(self.path / f"step-{step:07d}", overwrite=lambda existing: True) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in draft.state_dict().items()}, temporary / "draft.safetensors")
            save_file(_moments(draft, optimizer), temporary / "optimizer.safetensors")
            write_json(temporary / "state.json", {"step": step, **record})
        for old in self._checkpoints()[:-KEEP]:
            shutil.rmtree(old)

    def load_newest(self, draft: Eagle3Draft, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Fill draft and optimizer; returns the record saved with them, or None if there is no checkpoint."""
        found = self._checkpoints()
        if not found:
            return None
        try:
            record = read_json(found[-1] / "state.json", "the checkpoint's state")
            _check_record(record)
            draft.load_state_dict(load_file(found[-1] / "draft.safetensors"))
            _set_moments(draft, optimizer, load_file(found[-1] / "optimizer.safetensors"))
        except (OSError, SafetensorError, RuntimeError, UserError) as error:
            raise UserError(
                f"the checkpoint {found[-1]} is damaged",
                got=str(error).splitlines()[0],
                remedy=f"remove {found[-1].name} to go on from the checkpoint before it, or {self.path} to begin again",
            ) from error
        return record

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def remove_if_unused(self) -> None:
        """Without a checkpoint there is nothing to go on from, and the settings may be chosen anew."""
        if not self._checkpoints():
            self.remove()

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("step-*"))


def _check_record(record: dict[str, Any]) -> None:
    for key, kinds in (("step", (int,)), ("tokens_passed", (int,)), ("seconds", (int, float))):
        value: Any = record.get(key)
        if type(value) not in kinds or not value >= 0:
            raise UserError(f"state.json has no {key} to go on from", got=value)


def _moments(draft: Eagle3Draft, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    out = {}
    for name, parameter in draft.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            out[f"{name}/{key}"] = value.detach().clone()
    return out


def _set_moments(draft: Eagle3Draft, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    for name, parameter in draft.named_parameters():
        prefix = f"{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value.to(parameter.device) for key, value in tensors.items() if key.startswith(prefix)
        }
