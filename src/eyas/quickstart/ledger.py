"""What the quickstart has done already, so that a killed run goes on where it stopped.

An act is done if its record says so AND the files it read and wrote still have the checksums recorded. If a file was
changed or is missing, or an earlier act gave something else, the act is done again from a clean start.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyas.errors import UserError
from eyas.evaluate.report import peak_rss_gib
from eyas.files import read_json, sha256_file, sha256_text, write_json
from eyas.progress import console


@dataclass(frozen=True)
class Act:
    """One part of the show.

    Args:
        do: does the work and returns a JSON object; it may go on from what a killed run left in `outputs` and `scratch`.
        inputs, outputs: files or folders read and written.
        scratch: what the work leaves beside its outputs until it is finished.
    """

    name: str
    title: str
    what: str
    do: Callable[[], dict[str, Any]]
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    scratch: tuple[Path, ...] = ()


@dataclass
class Ledger:
    """`path` is the record on disk; `recipe` must be the same at every start.

    Raises UserError if the record belongs to another recipe.
    """

    path: Path
    recipe: dict[str, Any]
    num_acts: int
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._record: dict[str, Any] = {"recipe": self.recipe, "once": {}, "acts": {}}
        if self.path.exists():
            self._record = read_json(self.path, "the quickstart's record")
            differing = {key for key in {*self.recipe, *self._record["recipe"]} if self.recipe.get(key) != self._record["recipe"].get(key)}
            if differing:
                raise UserError(
                    f"{self.path.parent} holds a quickstart with other settings",
                    got=", ".join(f"{key} = {self.recipe.get(key)}" for key in sorted(differing)),
                    allowed=", ".join(f"{key} = {self._record['recipe'].get(key)}" for key in sorted(differing)),
                    remedy="give another --out, or the same settings to go on",
                )
        self._earlier_seconds = sum(entry.get("seconds", 0.0) for entry in self._record["acts"].values())
        self._shown = 0

    @property
    def seconds(self) -> float:
        """Time spent so far, that of earlier runs on finished acts included."""
        return self._earlier_seconds + time.perf_counter() - self._started

    @property
    def peak_rss_gib(self) -> float:
        return max([peak_rss_gib(), *(entry.get("peak_rss_gib", 0.0) for entry in self._record["acts"].values())])

    @property
    def act_seconds(self) -> dict[str, float]:
        return {name: round(entry["seconds"], 1) for name, entry in self._record["acts"].items() if "seconds" in entry}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is chosen at the first run and kept by all later ones."""
        if name not in self._record["once"]:
            self._record["once"][name] = make()
            self._write()
        return self._record["once"][name]

    def run(self, act: Act) -> dict[str, Any]:
        """Do the act, or say that it was done; returns its result."""
        self._shown += 1
        console.print(f"\n[bold]{self._shown}/{self.num_acts}  {act.title}[/bold]", highlight=False)
        console.print(f"     {act.what}", style="dim", markup=False, highlight=False)
        inputs = checksums(act.inputs)
        entry = self._record["acts"].get(act.name)
        if entry is not None and "result" in entry and entry["inputs"] == inputs and entry["outputs"] == checksums(act.outputs):
            console.print(f"     done in an earlier run, in {entry['seconds']:.0f} s", style="green", markup=False, highlight=False)
            return dict(entry["result"])
        if entry is not None and ("result" in entry or entry["inputs"] != inputs):
            _remove(*act.outputs, *act.scratch)
        self._record["acts"][act.name] = {"inputs": inputs}
        self._write()
        return self._do(act, inputs)

    def _do(self, act: Act, inputs: dict[str, str | None]) -> dict[str, Any]:
        started = time.perf_counter()
        result = act.do()
        seconds = time.perf_counter() - started
        self._record["acts"][act.name] = {
            "inputs": inputs,
            "outputs": checksums(act.outputs),
            "result": result,
            "seconds": seconds,
            "peak_rss_gib": peak_rss_gib(),
        }
        self._write()
        console.print(f"     {seconds:.0f} s, {self.seconds / 60:.1f} minutes in all", style="green", markup=False, highlight=False)
        return result

    def _write(self) -> None:
        write_json(self.path, self._record)


def checksums(paths: tuple[Path, ...]) -> dict[str, str | None]:
    """One for each file or folder; None for what is not there."""
    return {path.name: _checksum(path) for path in paths}


def _checksum(path: Path) -> str | None:
    if path.is_file():
        return sha256_file(path)
    if not path.is_dir():
        return None
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return sha256_text("\n".join(f"{file.relative_to(path)} {sha256_file(file)}" for file in files))


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
