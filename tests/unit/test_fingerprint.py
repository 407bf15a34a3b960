"""A trace's file that is none, or one of another version, is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.capture.fingerprint import Trace
from eyas.errors import UserError


@pytest.mark.parametrize(
    ("header", "words"),
    [("null", "not a trace"), ('{"format": 1}', "lacks fields"), ('{"format": 1, "state_names": [], "look": {"bits": 3}}', "lacks fields")],
)
def test_a_file_that_is_not_this_versions_trace_is_named(tmp_path: Path, header: str, words: str) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "trace.safetensors", metadata={"eyas_trace": header})
    with pytest.raises(UserError, match=words):
        Trace.load(tmp_path / "trace.safetensors")
