"""The dump's files: round trip, refusals in words, and what a damaged or foreign folder says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.data import store_writer
from eyas.data.store import Dump, Sample
from eyas.data.store_writer import DumpHeader, DumpWriter
from eyas.errors import UserError
from eyas.files import exclusive, metadata_of
from eyas.taps import Tap, parse_taps
from eyas.wiring import Wiring

HIDDEN, VOCAB, LENGTHS = 4, 11, (5, 3, 4, 6)
CHECK = {"checked": 1, "agreeing": 1, "near_ties": 0, "wrong": 0}


def header(**settings: object) -> DumpHeader:
    wiring = Wiring(
        taps=parse_taps("embed,layer:1"),
        num_target_layers=4,
        target_hidden_size=HIDDEN,
        target_vocab_size=VOCAB,
        states_dtype="bfloat16",
        teacher=Tap(None),
    )
    return DumpHeader(
        wiring=wiring,
        sample_ids=("a", "b", "c", "d"),
        lengths=LENGTHS,
        validation=(3,),
        num_scored_rows=7,
        max_batch_tokens=12,
        plan=[[[3], [0]], [[2, 1]]],
        settings={"taps": "embed,layer:1", "dtype": "bfloat16"} | settings,
        provenance={"command": "eyas capture --taps embed,layer:1"},
    )


def sample(index: int) -> Sample:
    generator = torch.Generator().manual_seed(index)
    length = LENGTHS[index]
    return Sample(
        token_ids=torch.randint(VOCAB, (length,), generator=generator),
        loss_mask=torch.rand(length, generator=generator) > 0.5,
        states=torch.randn(length, 2 * HIDDEN, generator=generator).bfloat16(),
        teacher=torch.randn(length, HIDDEN, generator=generator).bfloat16(),
        top1=torch.randint(VOCAB, (length,), generator=generator),
    )


def write(folder: Path, shards: int = 2, **settings: object) -> Path:
    with DumpWriter(folder, header(**settings), torch.arange(VOCAB)) as writer:
        for number in range(writer.next_shard, shards):
            writer.write_shard([sample(index) for batch in header().plan[number] for index in batch], CHECK)
        if shards == 2:
            save_file({"x": torch.zeros(1)}, writer.trace_path)
            writer.finish(CHECK, wrong_teacher=False)
    return folder


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write(tmp_path / "dump")


def test_round_trip(dump: Path):
    opened = Dump.open(dump)
    assert opened.lengths() == list(LENGTHS)
    assert (opened.training, opened.validation) == ((0, 1, 2), (3,))
    assert opened.num_scored_rows == 7
    assert opened.wiring.teacher_verified
    assert torch.equal(opened.token_counts(), torch.arange(VOCAB))
    for index in range(4):
        wanted, found = sample(index), opened.sample(index)
        for name in ("token_ids", "loss_mask", "states", "teacher", "top1"):
            assert torch.equal(getattr(wanted, name), getattr(found, name)), (index, name)
            assert getattr(wanted, name).dtype == getattr(found, name).dtype
    opened.verify()


def test_an_unfinished_dump_says_how_to_go_on(tmp_path: Path):
    write(tmp_path / "dump", shards=1)
    with pytest.raises(UserError, match="unfinished") as error:
        Dump.open(tmp_path / "dump")
    assert "1 of 2 shards" in str(error.value)
    assert "eyas capture --taps embed,layer:1" in str(error.value)


def test_resume_with_another_setting_is_refused_with_both_values(tmp_path: Path):
    write(tmp_path / "dump", shards=1)
    with pytest.raises(UserError, match="begun with other settings") as error:
        write(tmp_path / "dump", taps="layer:1,embed")
    assert "layer:1,embed" in str(error.value)
    assert "embed,layer:1" in str(error.value)
    write(tmp_path / "dump")
    Dump.open(tmp_path / "dump").verify()


def test_a_folder_of_something_else_is_not_written_into(tmp_path: Path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a dump"):
        write(tmp_path / "dump")
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["thesis.txt"]


def test_two_writers_at_once_are_refused(tmp_path: Path):
    with DumpWriter(tmp_path / "dump", header(), torch.arange(VOCAB)), pytest.raises(UserError, match="another process"):
        write(tmp_path / "dump")


def test_a_dump_that_another_process_began_meanwhile_is_not_gone_on_with(tmp_path: Path, monkeypatch):
    def late(folder: Path):
        monkeypatch.undo()
        write(folder, shards=1, taps="layer:1,embed")
        return exclusive(folder)

    monkeypatch.setattr(store_writer, "exclusive", late)
    with pytest.raises(UserError, match="begun with other settings"):
        write(tmp_path / "dump")
    assert json.loads((tmp_path / "dump" / "manifest.json").read_text())["settings"]["taps"] == "layer:1,embed"


@pytest.mark.parametrize("part", ["states", "teacher"])
def test_states_that_are_not_finite_are_refused(tmp_path: Path, part: str):
    with DumpWriter(tmp_path / "dump", header(), torch.arange(VOCAB)) as writer:
        samples = [sample(3), sample(0)]
        getattr(samples[1], part)[2, 1] = float("nan")
        with pytest.raises(UserError, match=r"sample a has a .*not finite") as error:
            writer.write_shard(samples, CHECK)
        assert "position 2" in str(error.value)
        assert writer.next_shard == 0


def test_states_of_another_length_than_the_tokens_are_refused(tmp_path: Path):
    with (
        DumpWriter(tmp_path / "dump", header(), torch.arange(VOCAB)) as writer,
        pytest.raises(UserError, match="sample d have other lengths"),
    ):
        writer.write_shard([sample(0), sample(3)], CHECK)  # of each other


def truncate(dump: Path) -> None:
    shard = dump / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])


def lose(dump: Path) -> None:
    (dump / "shard-00001.safetensors").unlink()


def foreign_manifest(dump: Path) -> None:
    (dump / "manifest.json").write_text(json.dumps({"version": 3, "samples": []}))


def broken_manifest(dump: Path) -> None:
    (dump / "manifest.json").write_text((dump / "manifest.json").read_text()[:-50])


def no_manifest(dump: Path) -> None:
    (dump / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "cut short"),
        (lose, "missing"),
        (foreign_manifest, "unknown format"),
        (broken_manifest, "not valid JSON"),
        (no_manifest, "is not a dump"),
    ],
)
def test_a_damaged_dump_is_refused_on_opening(dump: Path, damage, words: str):
    damage(dump)
    with pytest.raises(UserError, match=words):
        Dump.open(dump)


def test_a_changed_byte_is_found_by_verify(dump: Path):
    shard = dump / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match="changed or damaged"):
        Dump.open(dump).verify()


def test_a_shard_of_another_dump_is_refused_before_its_states_are_used(dump: Path):
    """Same size, other samples: the manifest's lengths tell."""
    shard = dump / "shard-00001.safetensors"
    tensors = load_file(shard)
    tensors["offsets"] = torch.tensor([0, 3, 7])
    save_file(tensors, shard, metadata_of(shard))
    with pytest.raises(UserError, match="other lengths than in the manifest"):
        Dump.open(dump).sample(1)


def test_states_of_another_dtype_are_refused(dump: Path):
    shard = dump / "shard-00001.safetensors"
    tensors = load_file(shard)
    tensors["states"] = tensors["states"].half()
    save_file(tensors, shard, metadata_of(shard))
    with pytest.raises(UserError, match="other dtypes"):
        Dump.open(dump).sample(2)


EDITS = {
    "wiring is no object": lambda manifest: manifest.update(wiring="x"),
    "a field is gone": lambda manifest: manifest.pop("wrong_teacher"),
    "a number is a text": lambda manifest: manifest.update(num_samples="4"),
    "a sample is planned twice": lambda manifest: manifest["batch_plan"]["shards"][0].append([3]),
    "a plan of nothing": lambda manifest: manifest.update(batch_plan={"shards": 5}),
    "lengths of other samples": lambda manifest: manifest["samples"]["lengths"].reverse() or manifest["samples"]["lengths"].pop(),
    "another total": lambda manifest: manifest.update(num_tokens=1),
    "validation beyond the samples": lambda manifest: manifest["samples"].update(validation=[9]),
    "a shard without checksum": lambda manifest: manifest["shards"][0].pop("sha256"),
    "shards out of order": lambda manifest: manifest["shards"].reverse(),
    "a shard left out": lambda manifest: manifest["shards"].pop(),
    "a file elsewhere": lambda manifest: manifest["shards"][0].update(file="../other/shard-00000.safetensors"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_manifest_edited_by_hand_is_refused_in_words(dump: Path, edit):
    manifest = json.loads((dump / "manifest.json").read_text())
    edit(manifest)
    (dump / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest|unfinished|wiring"):
        Dump.open(dump)


def test_taps_edited_by_hand_are_refused(dump: Path):
    manifest = json.loads((dump / "manifest.json").read_text())
    manifest["wiring"]["taps"].reverse()
    (dump / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is not the wiring"):
        Dump.open(dump).verify()
