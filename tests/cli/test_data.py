"""`eyas data`, from the outside."""

from __future__ import annotations

import json

import pytest

from eyas.cli.main import main
from eyas.data.chats import read_chats
from eyas.data.prepared import read_prepared


@pytest.fixture
def run(capsys):
    """Runs a command in this process; returns exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    questions = ("Tell me two things about the fox.", "Count from two to five.", "Say delta three times.", "Say ember two times.")
    lines = [{"id": f"q{n}", "messages": [{"role": "user", "content": text}]} for n, text in enumerate(questions)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_regenerate_then_prepare(run, chats, tiny_targets, tmp_path):
    target = tiny_targets("llama", trained=True)
    answered = tmp_path / "answered.jsonl"
    code, out, err = run(
        "data", "regenerate", "--target", target, "--chats", chats, "--out", answered,
        "--max-new-tokens", 60, "--dtype", "fp32", "--heldout", chats, "--json",
    )  # fmt: skip
    assert code == 0, err
    report = json.loads(out)
    assert report["finish_reasons"] == {"stop": 4}
    assert report["heldout_overlap"] == 1.0
    assert not report["overlap_ok"]
    assert "delta delta delta" in next(chat for chat in read_chats(answered) if chat.id == "q2").messages[-1]["content"]
    assert not answered.with_name("answered.jsonl.journal").exists()

    code, out, err = run(
        "data", "prepare", "--target", target, "--chats", answered, "--out", tmp_path / "p", "--show", 1, "--validation", 0.25
    )
    assert code == 0, err
    assert "--- q" in out
    prepared = read_prepared(tmp_path / "p")
    assert (len(prepared.train), len(prepared.validation)) == (3, 1)


def test_parts_share_the_work(run, chats, tiny_targets, tmp_path):
    ids = []
    for part in ("1/2", "2/2"):
        out = tmp_path / part.replace("/", "of")
        code, _, err = run(
            "data", "regenerate", "--target", tiny_targets("llama"), "--chats", chats, "--out", out,
            "--max-new-tokens", 3, "--dtype", "fp32", "--part", part,
        )  # fmt: skip
        assert code == 0, err
        ids.append({chat.id for chat in read_chats(out)})
    assert ids == [{"q0", "q2"}, {"q1", "q3"}]


def test_sample_writes_prompts_and_says_where_the_others_went(run, tiny_targets, tmp_path):
    out = tmp_path / "prompts.jsonl"
    target = tiny_targets("llama", trained=True)
    code, text, err = run("data", "sample", "--target", target, "--count", 3, "--out", out, "--slots", 8, "--dtype", "fp32", "--json")
    assert code == 0, err
    assert json.loads(text)["kept"] == len(list(read_chats(out))) == 3


def test_overlap_exits_with_1_when_it_is_too_much(run, chats, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"messages": [{"role": "user", "content": "nothing that was ever said there"}]}) + "\n")
    assert run("data", "overlap", "--heldout", chats, "--chats", other)[0] == 0
    assert run("data", "overlap", "--heldout", chats, "--chats", chats)[0] == 1


def test_built_in_prompts_do_not_overlap(run, tmp_path):
    code, out, _ = run("data", "prompts", "--out", tmp_path / "p", "--json")
    assert code == 0
    counts = json.loads(out)
    assert counts["heldout"] >= 60
    assert counts["train"] >= 200
    code, out, _ = run("data", "overlap", "--heldout", tmp_path / "p/heldout.jsonl", "--chats", tmp_path / "p/train.jsonl", "--json")
    assert code == 0
    assert json.loads(out)["heldout_overlap"] < 0.05


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b"])
def test_a_wrong_part_is_a_user_error(run, chats, tmp_path, part):
    code, _, err = run("data", "regenerate", "--target", "x", "--chats", chats, "--out", tmp_path / "o", "--part", part)
    assert code == 2
    assert "--part" in err


def test_a_missing_and_a_truncated_target_are_user_errors(run, chats, tiny_targets, tmp_path):
    import shutil

    code, _, err = run("data", "prepare", "--target", tmp_path / "none", "--chats", chats, "--out", tmp_path / "o")
    assert code == 2, err
    assert "does not exist" in err
    cut = tmp_path / "cut"
    shutil.copytree(tiny_targets("llama"), cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    code, _, err = run("data", "regenerate", "--target", cut, "--chats", chats, "--out", tmp_path / "o2")
    assert code == 2, err
    assert "model.safetensors" in err
    assert not (tmp_path / "o").exists()
    assert not list(tmp_path.glob("o2*"))
