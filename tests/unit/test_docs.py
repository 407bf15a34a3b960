"""The documents hold together: links lead somewhere, commands are real, and nothing points at a line of source."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from eyas.cli.reference import walk

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
COMMANDS = {context.command_path: (command, context) for command, context in walk()}


def prose(path: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    return broken


def shell_commands(path: Path) -> list[str]:
    """The `eyas ...` command lines in the shell blocks of a document or script, continued lines joined."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [found[1] for line in lines if (found := re.match(r"\s*(?:\$ )?(?:\S*/)?(eyas .+)", line))]


def parse(line: str) -> None:
    """Raise what the command line itself would raise, without running anything. A shell variable stands for a 1."""
    line = re.sub(r"\$\{?\w+\}?", "1", line)
    words = shlex.split(re.split(r"\s(?:\||>|2>|&&|;)", line)[0], comments=True)
    path = words.pop(0)
    while words and f"{path} {words[0]}" in COMMANDS:
        path = f"{path} {words.pop(0)}"
    command, context = COMMANDS[path]
    if hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        command.resolve_command(context, words)
    command.make_context(context.info_name, words, parent=context.parent)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path):
    assert broken_links(path) == []


def lost_files(path: Path) -> list[str]:
    """Files of this repository that are named in the text, and are not there."""
    named = re.findall(r"`((?:src|tests|benchmarks|examples|docs|eyas)/[\w./-]+)`", path.read_text(encoding="utf-8"))
    return [name for name in named if not any((ROOT / folder / name).exists() for folder in ("", "src"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(path):
    assert lost_files(path) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_of_source_is_named(path):
    assert re.findall(r"\.py(?::|#L)\d+|\blines? \d+ (?:of|in) `?\w+\.py", path.read_text(encoding="utf-8")) == []


LINES = [
    (path, line)
    for path in [*DOCUMENTS, *ROOT.glob("examples/**/*.sh"), *ROOT.glob("benchmarks/*.sh")]
    if path.name != "cli.md"
    for line in shell_commands(path)
]


@pytest.mark.parametrize(("path", "line"), LINES, ids=lambda value: value.name if isinstance(value, Path) else value[:60])
def test_commands_in_documents_parse(path, line):
    parse(line)


def test_the_first_screen_shows_the_two_commands():
    screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "make quickstart" in screen
    assert "make test" in screen


def test_these_checks_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Head\n[a](#head) [b](#none) [c](none.md) [d](page.md)\n`docs/no.md` `eyas/files.py`\n\n```sh\neyas \\\n  --version\n```\n"
    )
    assert lost_files(page) == ["docs/no.md"]
    assert broken_links(page) == ["#none", "none.md"]
    assert shell_commands(page) == ["eyas --version"]
    with pytest.raises(Exception, match="nonsense"):
        parse("eyas --nonsense")
    with pytest.raises(Exception, match="nonsense"):
        parse("eyas nonsense")


def test_the_readme_quotes_the_benchmark():
    result = json.loads((ROOT / "benchmarks" / "results" / "loop.json").read_text())
    readme = (ROOT / "README.md").read_text()
    got = {goal["figure"]: goal["got"] for goal in result["goals"]}
    assert f"first-token accuracy | {100 * got['first_token_accuracy']:.1f} %" in readme
    for figure in ("acceptance_length_measured", "best_speculative_over_plain", "plain_over_transformers"):
        assert f"| {got[figure]:.2f} |" in readme, figure


def test_the_readme_quotes_the_quickstart():
    result = json.loads((ROOT / "benchmarks" / "results" / "quickstart.json").read_text())
    readme = (ROOT / "README.md").read_text()
    own, shipped = result, result["shipped"]
    loops_out = [column["without_loops"] for column in (own, shipped)]
    rows = {
        "first-token accuracy": [f"{100 * column['first_token_accuracy']:.1f} %" for column in loops_out],
        "tokens per round, measured (K = 3)": [f"{column['acceptance_length_measured']:.2f}" for column in loops_out],
        "first-token accuracy if fed the wrong states": [f"{100 * column['accuracy_as_if_wrong_taps']:.1f} %" for column in (own, shipped)],
    }
    for name, (left, right) in rows.items():
        assert f"| {name} | {left} | {right} |" in readme, name
    assert f"took {result['wall_seconds'] / 60:.1f} minutes" in readme
    assert f"and {result['peak_rss_gib']:.1f} GiB" in readme


def test_the_readme_quotes_the_story():
    story, readme = (ROOT / "docs" / "story.md").read_text(), " ".join((ROOT / "README.md").read_text().split())
    [row] = [line for line in story.splitlines() if line.startswith("| first-token accuracy")]
    right, wrong = (cell.strip() for cell in row.split("|")[2:4])
    assert f"{right} of its first tokens are right with the states it was trained on, {wrong} with their neighbours" in readme
