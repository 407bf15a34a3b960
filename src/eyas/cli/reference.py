"""Writes the CLI reference from the commands themselves: python -m eyas.cli.reference docs/cli.md

Without a path it prints; a test compares the file with what this module would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from eyas.cli.main import app
from eyas.files import write_text

_HEAD = """# Command line

Written by `make docs` from the commands' own help; a test keeps it up to date.

Exit status of every command: 0 fine; 1 the command did its work and the answer is bad; 2 your input is wrong, and one message
says what, what was found, what is allowed and what to do; 3 a bug in Eyas. Results go to stdout, progress and messages to stderr.
"""


def reference() -> str:
    """The whole reference as Markdown."""
    return "\n".join([_HEAD, *(_section(command, context) for command, context in walk())])


def walk() -> Iterator[tuple[Any, Any]]:
    """Yield every (click command, its context), each command before those below it."""
    yield from _walk(typer.main.get_command(app), "eyas", parent=None)


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[Any, Any]]:
    context = command.context_class(command, info_name=name, parent=parent)
    yield command, context
    if hasattr(command, "list_commands"):
        for child in command.list_commands(context):
            yield from _walk(command.get_command(context, child), child, context)


def _section(command: Any, context: Any) -> str:
    lines = [f"## {context.command_path}", "", _help_text(command), ""]
    lines += ["```", " ".join([context.command_path, *command.collect_usage_pieces(context)]), "```", ""]
    if hasattr(command, "list_commands"):
        names = command.list_commands(context)
        lines += [f"- [`{context.command_path} {name}`](#{context.command_path.replace(' ', '-')}-{name})" for name in names] + [""]
    rows = [_row(parameter) for parameter in command.get_params(context) if "--help" not in parameter.opts]
    if rows:
        lines += ["| option | meaning | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _help_text(command: Any) -> str:
    text = (command.help or "").split("\f")[0].strip()
    return text.replace("\b\n", "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    return f"| {name} | {_cell(getattr(parameter, 'help', None) or '')} | {_default(parameter)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value == () or value == [] or (value is False and not parameter.secondary_opts):
        return ""
    return f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_text(Path(sys.argv[1]), reference())
    else:
        sys.stdout.write(reference())
