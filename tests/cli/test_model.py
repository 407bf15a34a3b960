"""`eyas model`, from the outside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from eyas.cli.main import main


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_list_names_what_can_be_pulled_and_made(capsys):
    code, out, _ = call(capsys, "model", "list", "--json")
    assert code == 0
    assert {"smollm2-135m", "smollm2-135m-draft", "tiny-llama", "tiny-deepseek_v3"} <= set(json.loads(out))


def test_make_writes_a_target_that_other_commands_take(capsys, tmp_path):
    code, out, err = call(capsys, "model", "make", "tiny-qwen3", "--out", tmp_path / "t", "--json")
    assert code == 0, err
    assert json.loads(out)["folder"] == str(tmp_path / "t")
    chats = tmp_path / "c.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    assert call(capsys, "data", "prepare", "--target", tmp_path / "t", "--chats", chats, "--out", tmp_path / "p")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("pull", "nothing"), "nothing of this name"), (("make", "llama"), "not the name of a tiny"), (("make", "tiny-x"), "no tiny model")],
)
def test_unknown_names_are_user_errors_and_write_nothing(capsys, tmp_path, arguments, message):
    code, _, err = call(capsys, "model", *arguments, "--out", tmp_path / "o")
    assert code == 2
    assert message in err
    assert not (tmp_path / "o").exists()


def test_the_list_fits_a_terminal_and_loads_no_torch():
    script = "import sys; from eyas.cli.main import main\ntry: main(['model', 'list'])\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tiny-granite" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not {"torch", "transformers"} & set(done.stderr.split())


def test_what_is_listed_is_what_can_be_made():
    from eyas.targets import catalog, made, tiny

    assert set(catalog.TINY_FAMILIES) == set(tiny._FAMILIES)
    assert set(catalog.MADE_SUMMARIES) == set(made.RECIPES)
