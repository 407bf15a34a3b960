"""What the outer shell of every command promises: exit statuses, where messages go, and a quick start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import types

import pytest
import typer

import eyas
from eyas.cli import main as cli
from eyas.cli.options import emit
from eyas.errors import UserError


@pytest.fixture
def fake(monkeypatch):
    """Put a function in the place of `eyas train`."""

    def install(function):
        module = types.ModuleType("eyas.cli.train")
        module.command = function
        monkeypatch.setitem(sys.modules, "eyas.cli.train", module)

    return install


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    return caught.value.code or 0


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"eyas {eyas.__version__}\n"


def test_a_command_that_returns_is_fine(fake, capsys):
    fake(lambda: print("done"))
    assert run("train") == 0
    assert capsys.readouterr().out == "done\n"


def test_a_user_error_is_one_message_on_stderr(fake, capsys):
    def command():
        raise UserError("unknown tap", got="layer", remedy="write layer:2")

    fake(command)
    assert run("train") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: unknown tap\n  got:     layer\n  remedy:  write layer:2\n"


def test_a_bad_answer_is_1(fake):
    def command():
        raise typer.Exit(1)

    fake(command)
    assert run("train") == 1


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(fake, capsys):
    def command():
        raise ZeroDivisionError("some bug")

    fake(command)
    assert run("train") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err and "ZeroDivisionError: some bug" in err and "report" in err


def test_ctrl_c(fake, capsys):
    def command():
        raise KeyboardInterrupt

    fake(command)
    assert run("train") == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"), [("nonsense", "nonsense"), ("train --nonsense", "--nonsense"), ("train --steps many", "--steps")]
)
def test_wrong_usage_is_2(fake, capsys, arguments, named):
    def command(steps: int = 1):
        raise AssertionError("must not run")

    fake(command)
    assert run(*arguments.split()) == 2
    assert named in capsys.readouterr().err


def in_a_process(body, **options):
    """Run `eyas train` with a body of its own in a fresh interpreter."""
    script = f"""
import sys, types
def command():
{textwrap.indent(textwrap.dedent(body), "    ")}
module = types.ModuleType("eyas.cli.train")
module.command = command
sys.modules["eyas.cli.train"] = module
from eyas.cli.main import main
main(["train"])
"""
    return subprocess.Popen([sys.executable, "-c", script], text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def test_a_reader_that_goes_away_is_no_bug():
    process = in_a_process("for n in range(200_000): print(n)")
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 141


def test_a_real_interrupt_leaves_with_130():
    process = in_a_process("""
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it otherwise
        print("ready", flush=True)
        time.sleep(60)
    """)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "interrupted\n"


def test_emit_prints_one_json_object(capsys):
    emit({"rounds": 3, "name": "größe", "shipped": {"rounds": None}}, as_json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"rounds": 3, "name": "größe", "shipped": {"rounds": None}}


def test_emit_refuses_what_json_has_not():
    with pytest.raises(ValueError, match="JSON"):
        emit({"rate": float("nan")}, as_json=True)


def test_emit_for_people(capsys):
    emit({"rounds": 3, "acceptance": 1.23456, "shipped": {"rounds": 4}}, as_json=False)
    assert capsys.readouterr().out == "rounds      3\nacceptance  1.235\nshipped\n  rounds  4\n"
