"""A journal survives a crash in mid-line and refuses to mix two jobs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from eyas.data.journal import Journal
from eyas.errors import UserError

ODD_TEXT = "a\nb ü \u2028 \x85 \x0b \r"


def fill(path, count):
    with Journal(path, {"seed": 1}) as journal:
        for n in range(count):
            journal.append({"n": n, "text": ODD_TEXT})


def test_entries_come_back_in_order(tmp_path):
    fill(tmp_path / "j", 3)
    with Journal(tmp_path / "j", {"seed": 1}) as journal:
        assert [entry["n"] for entry in journal.entries] == [0, 1, 2]
        assert journal.entries[0]["text"] == ODD_TEXT


def test_every_entry_is_on_disk_at_once(tmp_path):
    with Journal(tmp_path / "j", {}) as journal:
        journal.append({"n": 0})
        assert len((tmp_path / "j").read_text().splitlines()) == 2


def test_any_cut_loses_only_the_line_it_falls_in(tmp_path):
    path = tmp_path / "j"
    fill(path, 3)
    data = path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(ends[0], len(data) + 1):
        path.write_bytes(data[:cut])
        with Journal(path, {"seed": 1}) as journal:
            whole = sum(end <= cut for end in ends) - 1
            assert [entry["n"] for entry in journal.entries] == list(range(whole))
            journal.append({"n": whole})
        with Journal(path, {"seed": 1}) as journal:
            assert [entry["n"] for entry in journal.entries] == list(range(whole + 1))


def test_a_cut_in_the_first_line_begins_again(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"settings": {"se')
    with Journal(path, {"seed": 2}) as journal:
        assert journal.entries == []
        journal.append({"n": 0})
    with Journal(path, {"seed": 2}) as journal:
        assert journal.entries == [{"n": 0}]


def test_other_settings_are_refused_and_nothing_is_touched(tmp_path):
    path = tmp_path / "j"
    fill(path, 2)
    before = path.read_bytes()
    with pytest.raises(UserError, match="other settings") as caught:
        Journal(path, {"seed": 2})
    assert caught.value.got == {"seed": 2}
    assert caught.value.allowed == {"seed": 1}
    assert path.read_bytes() == before


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    with Journal(tmp_path / "j", {"seed": 1}) as first:
        with pytest.raises(UserError, match="another process"):
            Journal(tmp_path / "j", {"seed": 1})
        first.append({"n": 0})
    with Journal(tmp_path / "j", {"seed": 1}) as journal:
        assert journal.entries == [{"n": 0}]


@pytest.mark.parametrize("line", [b"\x00\xff\n", b"[1]\n", b"{\n"])
def test_a_damaged_journal_is_named(tmp_path, line):
    fill(tmp_path / "j", 1)
    with open(tmp_path / "j", "ab") as stream:
        stream.write(line)
    with pytest.raises(UserError, match="is damaged") as caught:
        Journal(tmp_path / "j", {"seed": 1})
    assert "line 3" in caught.value.got


def test_a_disk_that_takes_nothing_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        Journal(tmp_path / "file" / "j", {})


def test_a_line_that_fits_the_disk_only_in_part_is_a_user_error(tmp_path, monkeypatch):
    with Journal(tmp_path / "j", {"seed": 1}) as journal:
        stream = journal._stream
        monkeypatch.setattr(journal, "_stream", SimpleNamespace(write=lambda line: stream.write(line[:5])))
        with pytest.raises(UserError, match="cannot write"):
            journal.append({"n": 0})
    with Journal(tmp_path / "j", {"seed": 1}) as journal:
        assert journal.entries == []


def test_a_job_that_did_nothing_leaves_nothing(tmp_path):
    with Journal(tmp_path / "j", {"seed": 1}):
        pass
    assert not (tmp_path / "j").exists()
