"""What a row of the version tables says, and how the rows for one engine and version are found.

Three tables describe an engine. *Readers*: the config keys in which it looks for the ids of the states to capture.
*Captures*: for a target's architecture, what an id means and which states can be had. *Heads*: which kinds of draft it
can run, and which of their switches it honours. Every row names the versions it holds for and where that was read.

Judging a version loads no torch: the tables are plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from eyas.errors import UserError

HeadKind = Literal["llama", "qwen3", "mla"]


class IdMeaning(Enum):
    """How an engine turns a list of ids into boundaries; N is the number of the target's layers."""

    BOUNDARY = "boundary"
    OUTPUT = "output of layer (boundary id + 1)"
    FIRST_IS_ONE = "output of layer if the first id is 1, else boundary"
    MAX_IS_N = "boundary if the largest id is N, else output of layer"

    def boundaries(self, ids: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
        """In the order of the ids, repeated ones and those out of range included."""
        literal = self is IdMeaning.BOUNDARY
        if self is IdMeaning.FIRST_IS_ONE:
            literal = bool(ids) and ids[0] != 1
        elif self is IdMeaning.MAX_IS_N:
            literal = bool(ids) and max(ids) == num_layers
        return ids if literal else tuple(number + 1 for number in ids)


class Row(Protocol):
    """What all three kinds of rows have: the versions for which they hold, as a PEP 440 specifier."""

    @property
    def versions(self) -> str: ...


@dataclass(frozen=True)
class ReaderRow:
    """Where ids are looked for. `runner`: an engine may have several ways to run a model, each with keys of its own.

    `ids_keys`: dotted config keys, the first one that holds a list wins; with none the engine falls back on the
    boundaries 2, N // 2 and N - 3.
    """

    versions: str
    runner: str
    ids_keys: tuple[str, ...]
    evidence: str


@dataclass(frozen=True)
class CaptureRow:
    """Which states of a target can be captured. All engines give them in ascending order, and each once.

    `no_embedding`, `no_last`: why boundary 0, or N, is out of reach; None if it can be had. `file`: where it was read.
    `fused_allreduce`: with tensor parallelism a state may be captured before the ranks have added up their shares.
    `cp_unsafe`: with context parallelism in prefill the captured rows are not put back into order.
    """

    versions: str
    architectures: tuple[str, ...]
    file: str
    meaning: IdMeaning
    evidence: str
    no_embedding: str | None = None
    no_last: str | None = None
    fused_allreduce: bool = False
    cp_unsafe: bool = False


@dataclass(frozen=True)
class HeadRow:
    """A kind of draft that an engine can run. `honours`: names of `draft_facts.FEATURES` that it takes into account.

    `why`: for some features that it does not honour, what it does instead.
    """

    versions: str
    kind: HeadKind
    architecture: str
    file: str
    honours: frozenset[str]
    evidence: str
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """One engine's tables. `oldest` and `newest` are the versions between which they were read."""

    name: str
    oldest: str
    newest: str
    readers: tuple[ReaderRow, ...]
    captures: tuple[CaptureRow, ...]
    heads: tuple[HeadRow, ...]


@dataclass(frozen=True)
class Judged:
    """An engine at a version. `version` is the one whose rows are used, `asked` the one that was asked for."""

    engine: Engine
    version: Version
    asked: str

    def holds(self, row: Row) -> bool:
        return SpecifierSet(row.versions).contains(self.version, prereleases=True)

    def readers(self) -> tuple[ReaderRow, ...]:
        return tuple(row for row in self.engine.readers if self.holds(row))

    def capture(self, architecture: str) -> CaptureRow | None:
        """None if this version captures nothing for the architecture. Raises UserError if no version is known to."""
        known = {name for row in self.engine.captures for name in row.architectures}
        if architecture not in known:
            raise UserError(
                f"what {self.engine.name} captures for this target is not known to Eyas",
                got=architecture,
                allowed=", ".join(sorted(known)),
                remedy="read the engine's model file and add a row to eyas/engines/",
            )
        found = [row for row in self.engine.captures if architecture in row.architectures and self.holds(row)]
        assert len(found) <= 1, f"two rows for {architecture} at {self.version}"
        return found[0] if found else None

    def head(self, kind: HeadKind) -> HeadRow | None:
        found = [row for row in self.engine.heads if row.kind == kind and self.holds(row)]
        assert len(found) <= 1, f"two rows for a {kind} head at {self.version}"
        return found[0] if found else None

    @property
    def name(self) -> str:
        return f"{self.engine.name} {self.asked}"

    def notes(self) -> list[str]:
        if Version(self.asked) > Version(self.engine.newest):
            return [f"{self.name} was not read: judged as {self.engine.newest}, the newest version that was"]
        return []


def judge(engine: Engine, version: str) -> Judged:
    """The engine at a version; one newer than all that were read is judged as the newest.

    Local and pre-release parts do not count: 0.33.1rc1 is judged as 0.33.1. Raises UserError for an odd or too old one.
    """
    try:
        asked = Version(version)
    except InvalidVersion as error:
        raise UserError(f"not a version of {engine.name}", got=version, allowed=f"for example {engine.newest}") from error
    base = Version(asked.base_version)
    if base < Version(engine.oldest):
        raise UserError(
            f"{engine.name} {version} is older than any version whose wiring is known",
            got=version,
            allowed=f"{engine.oldest} or newer",
            remedy="use a newer engine",
        )
    return Judged(engine, min(base, Version(engine.newest)), version)
