"""Capture to a dump: what it writes, what it refuses before it writes, and that a killed run leaves the same bits."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eyas.capture.forward import capture_batch
from eyas.capture.job import CaptureSettings
from eyas.capture.plan import Corpus, Text, make_plan, padded_tokens
from eyas.capture.runner import capture_to_dump
from eyas.capture.teacher import TeacherCheck, check_teacher
from eyas.data.store import Dump, shard_samples
from eyas.errors import UserError, WiringError
from eyas.files import sha256_file
from eyas.taps import Tap, parse_taps
from eyas.targets.loading import load_target
from eyas.targets.target import Target

TAPS = parse_taps("embed,layer:0,layer:2")


def load(folder: Path) -> Target:
    return load_target(str(folder), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def target(tiny_targets) -> Target:
    return load(tiny_targets("llama"))


def corpus_for(target: Target, count: int = 12) -> Corpus:
    rng = random.Random(3)
    texts = []
    for number in range(count):
        length = rng.randrange(4, 40)
        start = rng.randrange(length - 3)
        ids = tuple(rng.randrange(1, target.vocab_size) for _ in range(length))
        texts.append(Text(f"text-{number}", ids, tuple(position >= start for position in range(length))))
    return Corpus(tuple(texts), count - 3, "corpus", target.chat_template_hash, target.tokenizer_hash)


def settings(**changes: object) -> CaptureSettings:
    return CaptureSettings(**({"taps": TAPS, "max_batch_tokens": 64, "shard_bytes": 60_000} | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def dump(target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("capture") / "dump"
    capture_to_dump(target, corpus_for(target), settings(), folder)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


def test_a_dump_holds_the_states_of_each_text(target, dump: Path):
    opened, corpus = Dump.open(dump), corpus_for(target)
    opened.verify()
    assert opened.num_samples == 12
    assert opened.validation == (9, 10, 11)
    assert opened.sample_ids == [text.id for text in corpus.texts]
    assert opened.num_scored_rows == sum(
        sum(a and b for a, b in zip(text.loss_mask[1:], text.loss_mask[2:], strict=False)) for text in corpus.texts
    )
    for index, text in enumerate(corpus.texts):
        sample = opened.sample(index)
        alone = capture_batch(target, [text.token_ids], TAPS)[0]
        assert sample.token_ids.tolist() == list(text.token_ids)
        assert sample.loss_mask.tolist() == list(text.loss_mask)
        assert torch.allclose(sample.states, alone.states, rtol=1e-4, atol=1e-5)
        assert torch.allclose(sample.teacher, alone.final, rtol=1e-4, atol=1e-5)
        assert torch.equal(sample.top1, alone.top1)


def test_the_wiring_says_what_was_captured(target, dump: Path):
    wiring = Dump.open(dump).wiring
    assert (wiring.taps, wiring.teacher, wiring.teacher_norm_applied, wiring.teacher_verified) == (TAPS, Tap(None), True, True)
    assert (wiring.num_target_layers, wiring.target_hidden_size, wiring.states_dtype) == (4, 64, "float32")
    assert wiring.tokenizer_hash == target.tokenizer_hash
    assert wiring.trace_hash
    assert (wiring.fc_norm, wiring.d2t_hash, wiring.rope_inv_freq, wiring.ttt_steps) == (None, None, None, None)


def test_counts_are_of_the_answers_of_training_texts(target, dump: Path):
    counts = Dump.open(dump).token_counts()
    answers = [token for text in corpus_for(target).texts[:9] for token, kept in zip(text.token_ids, text.loss_mask, strict=True) if kept]
    assert counts.sum() == len(answers)
    assert counts[answers[0]] == answers.count(answers[0])


def test_the_last_boundary_with_the_norm_is_the_final_state(target, dump: Path, tmp_path: Path):
    report = capture_to_dump(target, corpus_for(target), settings(teacher=Tap(4)), tmp_path / "dump")
    assert report.teacher_check.passed
    for index in range(12):
        assert torch.equal(Dump.open(tmp_path / "dump").sample(index).teacher, Dump.open(dump).sample(index).teacher)


@pytest.mark.parametrize("teacher", ["layer:2", "layer:1"])
def test_a_wrong_teacher_is_refused_before_anything_is_written(target, tmp_path: Path, teacher: str):
    """Once a state that is also a tap, once one that is not."""
    with pytest.raises(UserError, match=f"the teacher {teacher} does not give") as error:
        capture_to_dump(target, corpus_for(target), settings(teacher=Tap.parse(teacher)), tmp_path / "dump")
    assert "--allow-wrong-teacher" in str(error.value)
    assert not (tmp_path / "dump").exists()


def test_a_wrong_teacher_that_is_wanted_marks_the_dump(target, tmp_path: Path):
    capture_to_dump(target, corpus_for(target), settings(teacher=Tap(3), allow_wrong_teacher=True), tmp_path / "dump")
    opened = Dump.open(tmp_path / "dump")
    assert opened.wrong_teacher
    assert opened.wiring.teacher_verified is False
    assert opened.manifest["teacher_check"]["share"] < 0.995
    wanted = target.norm(opened.sample(0).states.chunk(3, dim=-1)[2])
    assert torch.allclose(opened.sample(0).teacher, wanted, atol=1e-5), "the norm is applied to a teacher that stands before it"


def test_disagreement_is_called_a_near_tie_only_if_the_models_own_logits_are_close(target):
    final = capture_batch(target, [[5, 6, 7, 8]], ())[0].final
    own = target.head(final).argmax(-1)
    towards = target.lm_head.weight[(own[0] + 1) % target.vocab_size]
    other = final.clone()
    other[0] += 100 * towards
    assert check_teacher(target, other, final, own) == TeacherCheck(4, 3, 0, 1)
    logits = target.head(final)[0]
    second = logits.topk(2).indices[1]
    gap = target.lm_head.weight[own[0]] - target.lm_head.weight[second]
    tied = final.clone()
    tied[0] -= gap * (logits[own[0]] - logits[second]) / gap.square().sum()  # both logits equal now
    above, below = tied.clone(), tied.clone()
    above[0] += 1e-6 * gap
    below[0] -= 1e-6 * gap
    top1 = target.head(above).argmax(-1)
    assert check_teacher(target, below, above, top1) == TeacherCheck(4, 3, 1, 0)


def test_a_disk_that_is_too_small_is_refused_and_nothing_written(target, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 0, 50_000))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="would not fit") as error:
        capture_to_dump(target, corpus_for(target), settings(), tmp_path / "deep" / "dump")
    assert "--max-samples" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_texts_of_another_tokenizer_are_refused(target, tmp_path: Path):
    corpus = corpus_for(target)
    other = Corpus(corpus.texts, corpus.num_training, corpus.corpus_hash, corpus.chat_template_hash, "other")
    with pytest.raises(WiringError, match="another tokenizer"):
        capture_to_dump(target, other, settings(), tmp_path / "dump")


def test_a_family_row_that_names_a_wrong_part_is_refused(target, tmp_path: Path):
    row = dataclasses.replace(target.family, norm="layers.0.input_layernorm")
    with pytest.raises(UserError, match="says other tokens than the whole model"):
        capture_to_dump(dataclasses.replace(target, family=row), corpus_for(target), settings(), tmp_path / "dump")
    assert not (tmp_path / "dump").exists()


def test_a_finished_dump_is_left_as_it_is(target, dump: Path):
    before = files(dump)
    report = capture_to_dump(target, corpus_for(target), settings(), dump)
    assert report.num_shards_found == report.num_shards
    assert report.tokens_per_second is None
    assert files(dump) == before


def test_resuming_with_other_taps_is_refused_with_both(target, dump: Path):
    with pytest.raises(UserError, match="begun with other settings") as error:
        capture_to_dump(target, corpus_for(target), settings(taps=parse_taps("layer:0,embed,layer:2")), dump)
    assert "layer:0,embed,layer:2" in str(error.value)
    assert "embed,layer:0,layer:2" in str(error.value)


KILLED = """
import os, signal, sys
from pathlib import Path
import eyas.data.store_writer as writer, eyas.files as files
from tests_capture import capture_to_dump, corpus_for, load, settings

def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

folder, out, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if moment == "in the middle of writing shard 1":
    replace = os.replace
    os.replace = lambda source, path: kill() if Path(path).name == "shard-00001.safetensors" else replace(source, path)
else:  # shard 2 is written, the manifest does not know it yet
    sha256_file = writer.sha256_file
    writer.sha256_file = lambda path: kill() if path.name == "shard-00002.safetensors" else sha256_file(path)
target = load(folder)
capture_to_dump(target, corpus_for(target), settings(), out)
"""


@pytest.mark.timeout(600)  # two more interpreters on a busy machine
def test_killed_twice_and_resumed_gives_the_bits_of_an_uninterrupted_run(target, dump: Path, tiny_targets, tmp_path: Path):
    (tmp_path / "tests_capture.py").write_text(Path(__file__).read_text())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    out = tmp_path / "dump"
    for moment, num_shards in (("in the middle of writing shard 1", 1), ("shard 2 is written", 2)):
        process = subprocess.run(
            [sys.executable, "-c", KILLED, str(tiny_targets("llama")), str(out), moment], env=environment, capture_output=True, text=True
        )
        assert process.returncode == -signal.SIGKILL, process.stderr
        assert len(json.loads((out / "manifest.json").read_text())["shards"]) == num_shards
        assert any(path.name.endswith(".tmp") for path in out.iterdir()) == (num_shards == 1)
        with pytest.raises(UserError, match="unfinished"):
            Dump.open(out)
    report = capture_to_dump(target, corpus_for(target), settings(), out)
    assert report.num_shards_found == 2
    assert files(out) == files(dump)


def test_the_plan_holds_every_text_once_within_the_budget():
    rng = random.Random(1)
    lengths = [rng.randrange(1, 200) for _ in range(300)] + [1000]
    plan = make_plan(lengths, max_batch_tokens=512, shard_tokens=2000)
    batches = [batch for shard in plan for batch in shard]
    assert sorted(shard_samples(batches)) == list(range(301))
    assert all(padded_tokens(batch, lengths) <= 512 or len(batch) == 1 for batch in batches)
    assert batches[0] == [300], "the largest first"
    assert all(sum(lengths[index] for index in shard_samples(shard)) >= 2000 for shard in plan[:-1])
    padding = sum(padded_tokens(batch, lengths) for batch in batches) / sum(lengths)
    assert padding < 1.1
