"""The engines by name, and `vllm==0.33.0` as users write it."""

from __future__ import annotations

import re

from eyas.engines.rows import Engine, Judged, judge
from eyas.engines.sglang import SGLANG
from eyas.engines.vllm import VLLM
from eyas.errors import UserError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG)}


def names_engine(text: str) -> bool:
    """Whether `--to TEXT` means an engine at a version, and not a format."""
    return "==" in text or text in ENGINES


def parse_engine(text: str) -> Judged:
    """`vllm==0.33.0` or `sglang==0.5.14`. Raises UserError for anything else: a version is never guessed."""
    match = re.fullmatch(r"\s*([a-z-]+)\s*==\s*(\S+)\s*", text)
    if match is None or match[1] not in ENGINES:
        raise UserError(
            "an engine is named with its version",
            got=repr(text),
            allowed=" or ".join(f"{engine.name}=={engine.newest}" for engine in ENGINES.values()),
            remedy="ask the installed engine: pip show vllm, pip show sglang",
        )
    return judge(ENGINES[match[1]], match[2])
