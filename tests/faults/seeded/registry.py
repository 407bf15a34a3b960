"""The list of planted faults. A module a kind adds to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from seeded.sets import Set

Plant = Callable[[Set], Set]
FILES = ("static", "weights")
REPLAY = ("static", "weights", "replay")
LIVE = ("static", "weights", "replay", "live")


@dataclass(frozen=True)
class Fault:
    """`code` is the cause in the doctor's words; `plant` gives the set with it.

    depths: those that the doctor is asked for; faults that show in files alone are not replayed. patch: a bug put into
    our own engine while the doctor looks.
    """

    name: str
    code: str
    plant: Plant
    families: tuple[str, ...]
    depths: tuple[str, ...]
    patch: Callable[[], AbstractContextManager[object]] = nullcontext


FAULTS: list[Fault] = []


def fault(
    code: str,
    name: str,
    *families: str,
    depths: tuple[str, ...] = REPLAY,
    patch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Callable[[Plant], Plant]:
    """Decorate a function that plants a fault; llama is its family if none is named."""

    def keep(plant: Plant) -> Plant:
        FAULTS.append(Fault(name, code, plant, families or ("llama",), depths, patch))
        return plant

    return keep


def add(code: str, name: str, plant: Plant, *families: str, depths: tuple[str, ...] = REPLAY) -> None:
    fault(code, name, *families, depths=depths)(plant)
