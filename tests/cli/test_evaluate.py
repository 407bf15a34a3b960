"""`eyas evaluate` as a user meets it: JSON, exit statuses, and refusals in words before anything is computed."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from eyas.capture.trace import record_trace
from eyas.cli import main as cli
from eyas.draft.checkpoint import draft_wiring_fields, save_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.files import read_json, write_json
from eyas.taps import parse_taps
from eyas.targets.describe import target_wiring
from eyas.targets.loading import load_target
from eyas.targets.tiny_text import tiny_chats


@pytest.fixture(scope="module")
def target(tiny_targets):
    return tiny_targets("llama", trained=True)


@pytest.fixture(scope="module")
def draft(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft")
    model = load_target(str(target), device=torch.device("cpu"), dtype=torch.float32)
    made = Eagle3Draft(DraftConfig.from_target(model.config, num_taps=3, draft_vocab_size=model.vocab_size))
    made.set_vocab_map(torch.zeros(model.vocab_size, dtype=torch.long), torch.ones(model.vocab_size, dtype=torch.bool))
    warm_start(made, model)
    trace = record_trace(model)
    trace.save(folder / "trace")
    wiring = target_wiring(str(target)).replace(
        taps=parse_taps("embed,layer:0,layer:2"), trace_hash=trace.hash(), **draft_wiring_fields(made)
    )
    save_draft(folder / "draft", made, wiring, folder / "trace", "a draft for tests", torch.float32)
    return folder / "draft"


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "heldout.jsonl"
    path.write_text("".join(json.dumps({"messages": chat, "domain": "tiny"}) + "\n" for chat in tiny_chats(6, seed=9)))
    return path


@pytest.fixture
def evaluate(target, draft, chats, capsys):
    """Run the command with these options put over the usual ones; gives (exit status, stdout, stderr)."""

    def run(*flags, **options):
        usual = {"target": target, "draft": draft, "chats": chats, "max-new-tokens": 24, "dtype": "fp32", "lossless-prompts": 1}
        usual |= {name.replace("_", "-"): value for name, value in options.items()}
        arguments = [part for name, value in usual.items() for part in (f"--{name}", str(value))]
        with pytest.raises(SystemExit) as caught:
            cli.main(["evaluate", *arguments, *flags])
        printed = capsys.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


def test_json_holds_the_named_figures_and_nothing_else_is_on_stdout(evaluate, tmp_path):
    status, out, err = evaluate("--json", out=tmp_path / "report")
    value = json.loads(out)
    assert status == 0, err
    wanted = {
        "first_token_accuracy",
        "acceptance_length_predicted",
        "acceptance_length_measured",
        "vllm_acceptance_length_measured",
        "rounds",
    }
    wanted |= {"tokens_per_second_plain", "tokens_per_second_speculative", "lossless", "dtype", "wall_seconds", "peak_rss_gib", "domains"}
    assert set(value) >= wanted | {"uniform_accuracy", "conditional", "unconditional", "confidence_interval", "loops", "as_if", "warnings"}
    assert value["lossless"] is True
    assert value["agreement"]["holds"] is True
    assert value["acceptance_length_predicted"] == value["acceptance_length_measured"]
    assert (value["dtype"], value["max_new_tokens"], value["num_draft_tokens"]) == ("float32", 24, 3)
    assert read_json(tmp_path / "report" / "report.json", "report")["rounds"] == value["rounds"]
    assert (tmp_path / "report" / "report.png").is_file()


def test_the_table_goes_to_stdout(evaluate):
    status, out, _ = evaluate("--predict-only", lossless_prompts=0, max_chats=2)
    assert status == 0
    assert "acceptance length" in out
    assert "of 2 " in out


def test_as_if_feeds_other_states_and_says_so(evaluate):
    status, out, err = evaluate("--json", "--predict-only", as_if="layer:0,layer:2,layer:3", lossless_prompts=0)
    assert status == 0
    assert json.loads(out)["as_if"] == "layer:0,layer:2,layer:3"
    assert "on purpose" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"as_if": "layer:0,layer:1"}, "as many states"),
        ({"as_if": "layer:0,layer:1,layer:7"}, "beyond the last layer"),
        ({"as_if": "layer:0,layer:0,layer:1"}, "given twice"),
        ({"draft": "/nowhere/draft"}, "draft folder does not exist"),
        ({"chats": "/nowhere/chats.jsonl"}, "chats file does not exist"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is too small"),
        ({"max_chats": 0}, "--max-chats"),
        ({"dtype": "int3"}, "unknown --dtype"),
    ],
)
def test_wrong_input_is_one_clear_message(evaluate, options, message):
    status, out, err = evaluate(**options)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_broken_line_of_chats_is_named(evaluate, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n{"messages": 3}\n')
    status, _, err = evaluate(chats=tmp_path / "bad.jsonl")
    assert status == 2
    assert "line 2" in err


def test_another_model_of_the_same_shape_is_refused_in_numbers(evaluate, tiny_targets):
    status, _, err = evaluate(target=tiny_targets("llama", trained=False, seed=1))
    assert status == 2
    assert "is not the target" in err
    assert "distance" in err


def test_another_tokenizer_is_refused_before_weights_are_read(evaluate, target, tmp_path):
    """The weights are cut off: had they been read, the message would be about them."""
    copy = tmp_path / "target"
    shutil.copytree(target, copy)
    (copy / "model.safetensors").write_bytes(b"")
    tokenizer = read_json(copy / "tokenizer.json", "tokenizer")
    vocab = tokenizer["model"]["vocab"]
    one, two = list(vocab)[300:302]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    write_json(copy / "tokenizer.json", tokenizer)
    status, _, err = evaluate(target=copy)
    assert status == 2
    assert "tokenizer_hash" in err
    assert "remedy" in err


def test_another_chat_template_is_a_warning(evaluate, target, tmp_path):
    copy = tmp_path / "target"
    shutil.copytree(target, copy)
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + "{# another #}")
    status, out, err = evaluate("--json", "--predict-only", target=copy, lossless_prompts=0)
    assert status == 0, err
    assert any("chat_template_hash" in warning for warning in json.loads(out)["warnings"])


def test_an_unexplained_difference_gives_exit_status_1(evaluate, monkeypatch):
    from eyas.evaluate import evaluate as module

    honest = module.walk
    monkeypatch.setattr(module, "walk", lambda answer, hits, k, limit: honest(answer, [[not hit for hit in row] for row in hits], k, limit))
    status, out, _ = evaluate("--json", lossless_prompts=0)
    assert status == 1
    assert json.loads(out)["agreement"]["unexplained"]
