"""What the doctor was given. Paths and names only: nothing is opened here, but what does not exist is refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import UserError


@dataclass(frozen=True)
class Exhibits:
    """`engine`: vllm==V, sglang==V or embedded. `metrics`: a file, or the address of a server's /metrics. `server`: its address."""

    target: str | None = None
    draft: Path | None = None
    dump: Path | None = None
    data: Path | None = None
    engine: str | None = None
    metrics: Path | str | None = None
    log: Path | None = None
    trust_remote_code: bool = False
    server: str | None = None

    def check(self) -> None:
        """Raises UserError if nothing was given, or something that does not exist."""
        for name in ("draft", "dump", "data", "metrics", "log"):
            path = getattr(self, name)
            if isinstance(path, Path) and not path.exists():
                raise UserError(f"--{name} does not exist: {path}", remedy="check the path")
        if self.draft is not None and not self.draft.is_dir():
            raise UserError("--draft is not a folder", got=str(self.draft), allowed="the folder with config.json and the weights")
        if self.target_folder is None and self.target is not None and self.target.startswith((".", "/", "~")):
            raise UserError(f"--target does not exist: {self.target}", remedy="give a folder with config.json, or a hub id")
        self._check_hub_id()
        if self.engine is not None and self.engine != "embedded":
            from eyas.engines.catalog import parse_engine

            parse_engine(self.engine)
        if not self.given():
            raise UserError("nothing to examine", allowed="--target with --draft, --dump, --server, --metrics or --log")

    def _check_hub_id(self) -> None:
        """Nothing is fetched for an examination."""
        from eyas.doctor.opening.target import cached_folder

        if self.target is not None and self.target_folder is None and cached_folder(self.target) is None:
            raise UserError(
                "--target is neither a folder nor a model in the hub's cache",
                got=self.target,
                allowed="a folder with config.json, or the id of a model that was fetched before",
                remedy=f"check the path; or fetch it: hf download {self.target}",
            )

    @property
    def target_folder(self) -> Path | None:
        """None for a hub id."""
        folder = Path(self.target) if self.target is not None else None
        return folder if folder is not None and folder.is_dir() else None

    def given(self) -> tuple[str, ...]:
        names = ("target", "draft", "dump", "data", "engine", "server", "metrics", "log")
        return tuple(name for name in names if getattr(self, name) is not None)

    def sources(self) -> set[str]:
        """What was given, by the names that hypotheses need things by: `figures` out of a log, `readings` out of a server too."""
        given = set(self.given())
        if given & {"metrics", "log"}:
            given |= {"figures", "readings"}
        return given | {"readings"} if "server" in given else given

    def to_json(self) -> dict[str, Any]:
        """Names without the folders or the scheme above them: a report goes to other people."""
        return {name: Path(str(getattr(self, name))).name or str(getattr(self, name)) for name in self.given()}


@dataclass(frozen=True)
class Options:
    """Args:
    depths: what to go down to. only, skip: codes or letters of kinds.
    minutes: no further test is begun after so long; those left are said to be untested.
    rows: of real text to replay.
    num_draft_tokens, temperature: of the reported figures, K where they do not say it themselves; None where nobody told.
    """

    depths: tuple[str, ...] = ("static", "weights", "replay", "live")
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    minutes: float | None = None
    rows: int = 3000
    num_draft_tokens: int | None = None
    temperature: float | None = None

    def check(self) -> None:
        """Raises UserError for a code, a kind or a number that there is not."""
        from eyas.doctor.catalog import CATALOG, KINDS
        from eyas.doctor.hypothesis import DEPTHS

        for name in (*self.only, *self.skip):
            if name not in CATALOG and name not in KINDS:
                raise UserError("no such code or kind", got=name, allowed=f"{', '.join(KINDS)}, or {', '.join(CATALOG)}")
        for depth in self.depths:
            if depth not in DEPTHS:
                raise UserError("no such depth", got=depth, allowed=", ".join(DEPTHS))
        if self.minutes is not None and not self.minutes > 0:
            raise UserError("--budget must be positive", got=self.minutes)
        if self.rows < 1:
            raise UserError("--rows must be at least 1", got=self.rows)
        if self.num_draft_tokens is not None and self.num_draft_tokens < 1:
            raise UserError("--num-draft-tokens must be at least 1", got=self.num_draft_tokens)
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise UserError("--temperature is out of range", got=self.temperature, allowed="0 (greedy) or a positive number")

    def wants(self, code: str, kind: str) -> bool:
        return (not self.only or code in self.only or kind in self.only) and code not in self.skip and kind not in self.skip
