"""The `eyas` command. Every command lives in a module of its own, which is imported when the command is used.

Exit status: 0 fine; 1 the command did its work and the answer is bad; 2 the user's input is wrong; 3 a bug of ours;
130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import eyas
from eyas.errors import UserError

# What `eyas --help` lists, in the order in which the loop is walked. eyas.cli.NAME defines `app` or `command`.
COMMANDS = {
    "quickstart": "The whole loop on a real model, in one go.",
    "model": "List and fetch targets and drafts that need no hub.",
    "data": "Prepare chats, and let the target answer them.",
    "capture": "Write a target's hidden states to a dump.",
    "train": "Train an EAGLE-3 draft on a dump.",
    "evaluate": "Accuracy and acceptance of a draft, predicted and measured.",
    "generate": "Generate text, speculatively when a draft is given.",
    "import": "Read another project's draft or dump.",
    "export": "Write a draft for another project or an engine.",
    "doctor": "Find out why a draft is accepted rarely, and what mends it.",
    "wiring": "Show what an artefact was made for, and how two differ.",
    "trace": "Record a target's fingerprint; say what a capture holds.",
    "plan": "Reckon disk, memory, network and hours of a run before it.",
}

EXIT_USER_ERROR, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 3, 130, 141


class LazyGroup(TyperGroup):
    """Knows its commands' names and summaries; imports a command's module when it is looked up."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        return _load_command(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Typer would turn both of these into exit status 1, which means something else here."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
            sys.exit(EXIT_BROKEN_PIPE)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)
        return result

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _load_command(name: str) -> Any:
    """The click command that eyas.cli.NAME defines: a sub-Typer `app` or a function `command`."""
    module = importlib.import_module(f"eyas.cli.{name}")
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    parent.callback()(lambda: None)  # makes Typer build a group even around one command
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        parent.command(name)(module.command)
    return typer.main.get_command(parent).commands[name]  # type: ignore[attr-defined]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"eyas {eyas.__version__}")
        raise typer.Exit


# Help texts are plain: Rich's markup would swallow the square brackets of taps.
app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train, prove and serve EAGLE-3 drafts whose wiring travels with every artefact."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave the process with the exit status of the module's docstring."""
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="eyas", standalone_mode=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except Exception:
        traceback.print_exc()
        print(f"\nThis is a bug in Eyas {eyas.__version__}. Please report it with the lines above and your command.", file=sys.stderr)
        sys.exit(EXIT_BUG)


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
