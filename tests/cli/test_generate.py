"""`eyas generate` as a user meets it."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from eyas.cli.main import main

CPU = torch.device("cpu")
TAPS = "embed,layer:0,layer:2"


@pytest.fixture(scope="module")
def target_folder(tiny_targets):
    return tiny_targets("llama")


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    """An untrained draft with a wiring and a trace, as `eyas train` would leave it."""
    from eyas.capture.trace import record_trace
    from eyas.draft.checkpoint import draft_wiring_fields, save_draft
    from eyas.draft.config import DraftConfig
    from eyas.draft.model import Eagle3Draft
    from eyas.taps import parse_taps
    from eyas.targets.describe import target_wiring
    from eyas.targets.loading import load_target

    folder = tmp_path_factory.mktemp("drafts")
    target = load_target(str(target_folder), device=CPU, dtype=torch.float32)
    torch.manual_seed(0)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=3, draft_vocab_size=512))
    draft.set_vocab_map(torch.zeros(512, dtype=torch.long), torch.ones(512, dtype=torch.bool))
    wiring = target_wiring(str(target_folder)).replace(taps=parse_taps(TAPS), **draft_wiring_fields(draft))
    record_trace(target).save(folder / "trace.safetensors")
    save_draft(folder / "draft", draft, wiring, folder / "trace.safetensors", "# a test's draft\n")
    return folder / "draft"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "12", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_a_draft_changes_nothing_but_the_figures(capsys, target_folder, draft_folder):
    prompt = ("--target", target_folder, "--prompt", "Tell me two things about the fox.")
    code, plain, plain_err = run(capsys, *prompt)
    assert code == 0
    assert "12 tokens" in plain_err
    assert "acceptance length 1.00, 11 rounds, ended by length" in plain_err
    code, speculative, err = run(capsys, *prompt, "--draft", draft_folder)
    assert code == 0
    assert speculative == plain
    assert "acceptance length" in err
    assert "warning" not in err


def test_json_is_one_object_with_the_rounds(capsys, target_folder, draft_folder):
    settings = ("--num-draft-tokens", 2, "--temperature", 0.8)
    code, out, err = run(capsys, "--target", target_folder, "--draft", draft_folder, "--prompt", "Hi", "--json", *settings)
    assert code == 0
    assert "tokens" in err
    result = json.loads(out)
    assert result["num_tokens"] == len(result["tokens"]) == 1 + sum(made["num_emitted"] for made in result["rounds"])
    assert result["num_rounds"] == len(result["rounds"])
    assert result["acceptance_length"] == pytest.approx((result["num_tokens"] - 1) / result["num_rounds"])
    assert [token for made in result["rounds"] for token in made["tokens"]] == result["tokens"][1:]
    assert {made["num_proposed"] for made in result["rounds"][:-2]} == {2}


@pytest.mark.parametrize(("terminal", "no_color", "mark"), [(True, "", "\x1b[32m"), (True, "1", "["), (False, "", "[")])
def test_accepted_tokens_are_marked_when_rounds_are_shown(capsys, monkeypatch, target_folder, draft_folder, terminal, no_color, mark):
    from eyas.engine.engine import Engine
    from eyas.engine.request import Round

    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    rounds = [Round(0, 0, 0, (70,), is_prefill=True), Round(3, 2, 3, (71, 72, 73))]
    real = Engine.run

    def scripted(self, request):
        list(real(self, request))
        return iter(rounds)

    monkeypatch.setattr(Engine, "run", scripted)
    arguments = ("--target", target_folder, "--draft", draft_folder, "--prompt", "Hi")
    code, marked, _ = run(capsys, *arguments, "--show-rounds")
    assert code == 0
    assert marked.count(mark) == 2
    _, bare, _ = run(capsys, *arguments)
    assert "\x1b" not in bare
    closing = "]" if mark == "[" else "\x1b[0m"
    assert marked.replace(mark, "").replace(closing, "") == bare


def test_a_raw_prompt_goes_in_as_it_is(capsys, target_folder):
    _, out, _ = run(capsys, "--target", target_folder, "--prompt", "The fox", "--raw", "--json")
    assert json.loads(out)["num_prompt_tokens"] < 8
    _, out, _ = run(capsys, "--target", target_folder, "--prompt", "The fox", "--json", "--system", "Answer in short sentences.")
    assert json.loads(out)["num_prompt_tokens"] > 12


def test_a_prompt_may_come_from_a_file(capsys, tmp_path, target_folder):
    (tmp_path / "prompt.txt").write_text("Say amber two times.", encoding="utf-8")
    _, from_file, _ = run(capsys, "--target", target_folder, "--prompt-file", tmp_path / "prompt.txt")
    _, from_option, _ = run(capsys, "--target", target_folder, "--prompt", "Say amber two times.")
    assert from_file == from_option


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the prompt once"),
        (("--prompt", "a", "--prompt-file", "b"), "give the prompt once"),
        (("--prompt", "  "), "the prompt is empty"),
        (("--prompt-file", "/nowhere/prompt.txt"), "cannot read the prompt"),
        (("--prompt", "a", "--raw", "--system", "b"), "--raw has no system message"),
        (("--prompt", "a\udcff"), "not text in UTF-8"),
        (("--prompt", "a", "--system", "\udcff"), "not text in UTF-8"),
        (("--prompt", "a", "--temperature", "nan"), "temperature is out of range"),
        (("--prompt", "a", "--temperature", "-1"), "temperature is out of range"),
        (("--prompt", "a", "--max-new-tokens", "5000"), "longer than the target's positions"),
        (("--prompt", "a", "--draft", "/nowhere/draft"), "draft"),
    ],
)
def test_bad_input_is_one_clear_message(capsys, target_folder, arguments, message):
    code, out, err = run(capsys, "--target", target_folder, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_a_target_without_a_template_needs_raw(capsys, tmp_path, target_folder):
    import shutil

    folder = tmp_path / "bare"
    shutil.copytree(target_folder, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    code, _, err = run(capsys, "--target", folder, "--prompt", "a")
    assert code == 2
    assert "no chat template" in err
    assert run(capsys, "--target", folder, "--prompt", "a", "--raw")[0] == 0


def edit_wiring(draft_folder, tmp_path, **changes):
    import shutil

    folder = tmp_path / "edited"
    shutil.copytree(draft_folder, folder)
    wiring = json.loads((folder / "wiring.json").read_text()) | changes
    (folder / "wiring.json").write_text(json.dumps(wiring))
    return folder


def test_a_draft_for_another_target_is_refused_before_weights_are_read(capsys, monkeypatch, tmp_path, target_folder, draft_folder):
    import eyas.engine.pair

    def unread(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr(eyas.engine.pair, "load_target", unread)
    edited = edit_wiring(draft_folder, tmp_path, num_target_layers=30)
    code, _, err = run(capsys, "--target", target_folder, "--draft", edited, "--prompt", "a")
    assert code == 2
    for part in ("num_target_layers", "30", "4", "likely cause", "remedy"):
        assert part in err


def test_another_chat_template_is_a_warning(capsys, tmp_path, target_folder, draft_folder):
    edited = edit_wiring(draft_folder, tmp_path, chat_template_hash="0" * 64)
    code, _, err = run(capsys, "--target", target_folder, "--draft", edited, "--prompt", "a")
    assert code == 0
    assert "warning: chat_template_hash" in err


def test_a_wrong_teacher_is_told_whenever_the_draft_is_used(capsys, tmp_path, target_folder, draft_folder):
    edited = edit_wiring(draft_folder, tmp_path, teacher="layer:1", teacher_verified=False)
    code, _, err = run(capsys, "--target", target_folder, "--draft", edited, "--prompt", "a")
    assert code == 0
    assert "layer:1 does not give the target's own tokens" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "1e-40"),
        ("--temperature", "1e38"),
        ("--temperature", "1", "--top-k", "1" + "0" * 30),
        ("--temperature", "1", "--top-p", "1e-30"),
        ("--temperature", "1", "--seed", "1" + "0" * 30),
        ("--num-draft-tokens", "100"),
    ],
)
def test_values_at_the_edge_still_give_text(capsys, target_folder, draft_folder, options):
    code, out, _ = run(capsys, "--target", target_folder, "--draft", draft_folder, "--prompt", "a", "--max-new-tokens", "4", *options)
    assert code == 0
    assert out.strip()


def test_more_draft_tokens_than_buffers_are_made_for_are_refused(capsys, target_folder, draft_folder):
    code, _, err = run(capsys, "--target", target_folder, "--draft", draft_folder, "--prompt", "a", "--num-draft-tokens", "1000000000")
    assert code == 2
    assert "1 to 128" in err


def test_a_changed_target_is_refused_by_its_trace(capsys, tiny_targets, draft_folder):
    """Same architecture, same tokenizer, other weights."""
    code, out, err = run(capsys, "--target", tiny_targets("llama", seed=1), "--draft", draft_folder, "--prompt", "a")
    assert code == 2
    assert out == ""
    assert "is not the target that the draft" in err
