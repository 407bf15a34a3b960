"""The commands of docs/formats.md and docs/dumps.md are run as they stand there, on a checkpoint or dump of every project."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from eyas.cli.main import main
from eyas.formats.registry import FORMATS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "roundtrip" / "golden"


def lines_of(page: str) -> list[list[str]]:
    """The words of every command in the shell blocks, without comments and without `eyas`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines() if line.startswith("eyas ")]


def test_every_project_goes_in_and_out_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FORMATS:
        shutil.copytree(GOLDEN / name, tmp_path / name)
    commands = [words for words in lines_of("formats.md") if words[0] in ("import", "export")]
    for words in commands:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert not left.value.code, words
        assert any(Path(words[words.index("--out") + 1]).iterdir())
    assert {words[1] for words in commands if words[0] == "import"} == set(FORMATS)
    assert {words[words.index("--to") + 1] for words in commands if words[0] == "export"} == set(FORMATS)


def test_the_page_on_traces_quotes_the_benchmark() -> None:
    path = ROOT / "benchmarks" / "results" / "trace.json"
    result, page = json.loads(path.read_text()), (ROOT / "docs" / "trace.md").read_text()
    for name, found in result["cases"].items():
        assert f"| {name} | {found['right']} of {found['slots']} |" in page, name
    assert f"{result['trace_bytes']:,} bytes" in page
