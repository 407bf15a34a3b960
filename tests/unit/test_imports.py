"""The contracts in pyproject.toml hold for the rooms as they are, and each of them can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS, WIRING = "rooms import downwards only", "the wiring needs the standard library only"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the package below `folder`/src."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src" / "eyas", tmp_path / "src" / "eyas", ignore=lambda folder, names: {n for n in names if n == "__pycache__"})
    return tmp_path


def test_rooms_import_downwards_only():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("engine", "import eyas.train", ROOMS),
        ("data", "import eyas.capture", ROOMS),
        ("targets", "import eyas.draft", ROOMS),
        ("train", "import eyas.evaluate", ROOMS),
        ("draft", "import eyas.cli.options", ROOMS),
        ("wiring.py", "import torch", WIRING),
    ],
)
def test_an_import_upwards_is_found(copy, room, line, contract):
    path = copy / "src" / "eyas" / room
    path = path if path.suffix else path / "__init__.py"
    path.write_text(path.read_text() + f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout


def test_a_room_without_a_place_in_the_order_is_found(copy):
    (copy / "src" / "eyas" / "attic").mkdir()
    (copy / "src" / "eyas" / "attic" / "__init__.py").touch()
    done = lint(copy)
    assert done.returncode == 1
    assert "attic" in done.stdout
