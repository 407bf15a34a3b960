"""Units as people write them, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from plan_parts import PUBLISHED
from typer.testing import CliRunner

from eyas.cli.main import app
from eyas.errors import UserError
from eyas.plan.config import read_config
from eyas.plan.gpus import Fleet
from eyas.plan.known import KNOWN
from eyas.plan.units import parse_count, parse_rate


@pytest.mark.parametrize(
    ("text", "value"), [("100M", 10**8), ("1.5B", 1_500_000_000), ("51_200_000", 51_200_000), ("512k", 512_000), ("1e6", 10**6)]
)
def test_counts(text, value):
    assert parse_count(text, "--tokens") == value


@pytest.mark.parametrize("text", ["", "many", "-5", "0", "5X", "1.5", "100MB", "1e400", "0.2K5"])
def test_counts_that_are_none(text):
    with pytest.raises(UserError) as caught:
        parse_count(text, "--tokens")
    assert caught.value.allowed and "--tokens" in caught.value.what


def test_rates():
    assert parse_rate("5GB/s", "--disk-rate") == 5e9
    assert parse_rate("400MB/s", "--disk-rate") == 4e8
    for text, match in [("5", "needs a unit"), ("5GB", "needs a unit"), ("400Gb/s", "bytes, not bits"), ("5XB/s", "unknown unit")]:
        with pytest.raises(UserError, match=match):
            parse_rate(text, "--disk-rate")


@pytest.mark.parametrize("text", ["8xH2000", "8x", "x8", "0xH100", "8,H100", "-1xH100", "8xH100xB200"])
def test_gpus_that_are_none(text):
    with pytest.raises(UserError) as caught:
        Fleet.parse(text)
    assert caught.value.allowed and caught.value.remedy


def test_gpus():
    assert (Fleet.parse("8xH200").count, Fleet.parse("8xH200").gpu.memory) == (8, 141e9)
    assert Fleet.parse("h100") == Fleet(1, Fleet.parse("1 x H100").gpu)


def run(*words: str):
    return CliRunner().invoke(app, ["plan", *words])


def test_the_command_says_everything_that_was_asked():
    done = run("--target", "Kimi-K2.5", "--gpus", "16xH200", "--tokens", "100M")
    assert done.exit_code == 0
    for words in ("1.03 T parameters", "5.74 TB", "tp=8,cp=1,ep=8", "taken", "Offline:", "Online:", "limits", "TorchSpec", "MLA latents"):
        assert words in done.stdout, words


def test_json_holds_the_same_figures():
    done = run("--target", "DeepSeek-V3", "--gpus", "16xH200", "--tokens", "1M", "--json")
    value = json.loads(done.stdout)
    assert value["target"]["parameters"] == sum(value["target"]["parameters_by_part"].values())
    assert value["dump"][0]["bytes"] == (4 * 7168 * 2 + 9) * 10**6
    assert value["network"]["bytes"] == 4 * 7168 * 2 * 10**6
    assert value["layout"]["fits"] and value["layout"] in value["layouts"]
    assert value["limits"]


def test_exit_status_says_whether_the_target_fits():
    done = run("--target", "DeepSeek-V3", "--gpus", "8xH100", "--tokens", "1M")
    assert done.exit_code == 1
    assert "16 x H100 would do" in done.stdout
    assert run("--target", "DeepSeek-V3", "--gpus", "16xH100", "--tokens", "1M", "--layout", "tp=8").exit_code == 1


def test_a_file_a_folder_and_a_hub_like_name_work(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["Llama-3.1-8B"]))
    for target in (str(tmp_path), str(tmp_path / "config.json"), "meta-llama/llama-3.1-8b"):
        value = json.loads(run("--target", target, "--gpus", "H100", "--tokens", "1M", "--json").stdout)
        assert value["target"]["parameters"] == PUBLISHED["Llama-3.1-8B"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"--target": "Kimi-K9"}, "known by name"),
        ({"--gpus": "8xH2"}, "unknown GPU"),
        ({"--tokens": "100Q"}, "unknown unit"),
        ({"--length": "long"}, "--length"),
        ({"--num-taps": "0"}, "--num-taps"),
        ({"--draft-vocab-size": "200000"}, "larger than the target"),
        ({"--weight-bits": "64"}, "--weight-bits"),
        ({"--capture-rate": "-1"}, "--capture-rate"),
        ({"--disk-rate": "40Gb/s"}, "not bits"),
    ],
)
def test_what_the_user_gets_wrong_is_named(words, match):
    given = {"--target": "Kimi-K2.5", "--gpus": "8xH200", "--tokens": "1M"} | words
    done = run(*(word for pair in given.items() for word in pair))
    assert isinstance(done.exception, UserError)
    assert match in str(done.exception)


def test_a_config_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_config(str(tmp_path))
    with pytest.raises(UserError, match="missing"):
        read_config(str(tmp_path.parent))


def test_it_answers_without_torch():
    script = (
        "import sys; from eyas.cli.main import main\n"
        "try: main(['plan', '--target', 'Llama-3.1-8B', '--gpus', 'H100', '--tokens', '1M', '--json'])\n"
        "finally: assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gpus", ["16xH200", "64xH100"])
def test_the_layouts_fit_eighty_columns(monkeypatch, gpus):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("--target", "Kimi-K2.5", "--gpus", gpus, "--tokens", "100M").stdout.splitlines()
    head = next(number for number, line in enumerate(said) if line.lstrip().startswith("layout "))
    assert all(name in said[head] for name in ("copies", "weights", "cache", "activations", "in all", "fits"))
    rows = [line for line in said[head + 2 :] if line.lstrip().startswith("tp=")]
    assert rows
    assert all(len(line) <= 80 and "\u2026" not in line for line in said[head : head + 2 + len(rows)])
    assert all(len(re.split(r"  +", line.strip())) >= 4 and re.search(r"cp=\d+,ep=\d+ +\d+ +[\d.,]+ [kMGTP]?B", line) for line in rows)
