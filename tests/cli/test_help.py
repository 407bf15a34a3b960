"""Every command explains itself, starts without torch, and is written down in the reference."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from eyas.cli.main import COMMANDS, app
from eyas.cli.reference import reference, walk

ROOT = Path(__file__).parents[2]
COMMAND_LINES = [context.command_path.split()[1:] for _, context in walk()]


def test_the_list_of_commands_imports_none_of_them():
    script = "import sys; from eyas.cli.main import main\ntry: main(['--help'])\nfinally: print(*sys.modules, file=sys.stderr)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    assert done.returncode == 0
    assert all(name in done.stdout and summary in done.stdout for name, summary in COMMANDS.items())
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "transformers", "numpy"}
    assert not loaded & {f"eyas.cli.{name}" for name in COMMANDS}
    assert seconds < 10  # about 0.3 s on an idle machine; torch alone takes several


def test_no_command_loads_torch_before_it_runs():
    script = (
        "import sys, importlib\n"
        f"for name in {list(COMMANDS)}:\n"
        "    importlib.import_module(f'eyas.cli.{name}')\n"
        "    heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, f'eyas.cli.{name} imports {heavy} at its head'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_help(words, capsys):
    with pytest.raises(SystemExit) as caught:
        typer.main.get_command(app).main([*words, "--help"], prog_name="eyas")
    assert not caught.value.code
    out = capsys.readouterr().out
    assert out.startswith("Usage: eyas")


def test_every_command_and_every_option_has_a_help_text():
    silent = [context.command_path for command, context in walk() if not command.help]
    silent += [
        f"{context.command_path} {parameter.name}"
        for command, context in walk()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_json_and_device_are_spelt_alike_everywhere():
    """An option of one name has one meaning: its help text is shared (eyas.cli.options)."""
    texts: dict[str, set[str]] = {}
    for command, _ in walk():
        for parameter in command.params:
            for flag in set(parameter.opts) & {"--json", "--device", "--dtype", "--trust-remote-code"}:
                texts.setdefault(flag, set()).add(parameter.help)
    assert {flag: found for flag, found in texts.items() if len(found) > 1} == {}


def test_the_reference_is_up_to_date():
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run: make docs"
