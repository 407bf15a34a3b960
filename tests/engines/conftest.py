"""The real target, and the draft that comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.targets.catalog import pull
from eyas.targets.loading import load_target


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    pull("smollm2-135m", folder)
    return folder


@pytest.fixture(scope="session")
def shipped(smollm2: Path) -> Path:
    folder = smollm2.parent / "draft"
    pull("smollm2-135m-draft", folder)
    return folder


@pytest.fixture(scope="session")
def target(smollm2: Path) -> Any:
    return load_target(str(smollm2), device=torch.device("cpu"), dtype=torch.float32)
