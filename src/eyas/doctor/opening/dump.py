"""A dump's manifest and the headers of its shards; a dump of another project is only recognised as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyas.doctor.opening.headers import TensorInfo, read_header
from eyas.doctor.opening.plain import Object, inside, read_object


@dataclass(frozen=True)
class Shard:
    """`stated` is the manifest's entry; `problem`: why its header cannot be read."""

    file: Path
    stated: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    problem: str | None


@dataclass(frozen=True)
class DumpFiles:
    path: Path
    manifest: Object

    @property
    def is_eyas(self) -> bool:
        """Another project's cache has a manifest.json too."""
        return self.manifest.there and ("dump_format" in self.manifest.value or self.manifest.problem is not None)

    @cached_property
    def wiring(self) -> Mapping[str, Any]:
        value = self.manifest.value.get("wiring")
        return value if isinstance(value, Mapping) else {}

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        listed = self.manifest.value.get("shards")
        stated = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
        found = []
        for item in stated:
            file = self.path / Path(str(item.get("file"))).name
            tensors, _, problem = read_header(file) if file.is_file() else ({}, {}, f"{file.name} is missing")
            found.append(Shard(file, item, tensors, problem))
        return tuple(found)

    def problem_of(self, name: str) -> str | None:
        """What is wrong with one of the dump's other files; a trace may be absent, as in a dump of other makers."""
        file = self.path / name
        if not file.is_file():
            wanted = name.startswith("token_counts") or isinstance(self.wiring.get("trace_hash"), str)
            return f"{name} is missing" if wanted else None
        return read_header(file)[2]

    @property
    def lengths(self) -> list[int]:
        value = inside(self.manifest.value, "samples", "lengths")
        return [part for part in value if isinstance(part, int)] if isinstance(value, list) else []

    @property
    def ids(self) -> list[str]:
        value = inside(self.manifest.value, "samples", "ids")
        return [str(part) for part in value] if isinstance(value, list) else []


def open_dump(path: Path) -> DumpFiles:
    return DumpFiles(path, read_object(path / "manifest.json") if path.is_dir() else Object())
