"""The quickstart's record: what is done stays done, what was changed is done again, and what was killed goes on."""

from __future__ import annotations

import pytest

from eyas.errors import UserError
from eyas.quickstart.ledger import Act, Ledger
from eyas.quickstart.recipe import Recipe, wrong_taps
from eyas.taps import format_taps, parse_taps

RECIPE = {"minutes": 3, "seed": 0}


class Play:
    """Two acts: `a` writes a file, `b` reads it and writes a folder. Counts how often each really ran."""

    def __init__(self, folder):
        self.folder, self.ran = folder, []

    def write_a(self):
        self.ran.append("a")
        (self.folder / "a.txt").write_text("from a")
        return {"size": 6}

    def write_b(self):
        self.ran.append("b")
        (self.folder / "b").mkdir(exist_ok=True)
        (self.folder / "b" / "x").write_text((self.folder / "a.txt").read_text())
        return {}

    def run(self, recipe=RECIPE):
        self.ran.clear()
        ledger = Ledger(self.folder / "record.json", recipe, 2)
        a, b = self.folder / "a.txt", self.folder / "b"
        result = ledger.run(Act("a", "A", "writes", self.write_a, outputs=(a,)))
        ledger.run(Act("b", "B", "copies", self.write_b, inputs=(a,), outputs=(b,), scratch=(self.folder / "b.part",)))
        return result, list(self.ran)


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path)


def test_a_second_run_does_nothing_and_gives_the_same_results(play):
    assert play.run() == ({"size": 6}, ["a", "b"])
    assert play.run() == ({"size": 6}, [])


def test_a_changed_output_is_made_again_and_nothing_else(play):
    play.run()
    (play.folder / "b" / "x").write_text("damaged")
    assert play.run()[1] == ["b"]
    assert (play.folder / "b" / "x").read_text() == "from a"
    (play.folder / "b" / "stray").write_text("not ours")
    assert play.run()[1] == ["b"]
    assert not (play.folder / "b" / "stray").exists()


def test_a_missing_output_is_made_again(play):
    play.run()
    (play.folder / "a.txt").unlink()
    assert play.run()[1] == ["a"], "a gives the same bits, so b still stands"


def test_other_inputs_make_the_act_start_from_nothing(play, monkeypatch):
    play.run()
    (play.folder / "b.part").write_text("half of the old work")
    monkeypatch.setattr(play, "write_a", lambda: (play.folder / "a.txt").write_text("else") and {})
    (play.folder / "a.txt").unlink()
    assert play.run()[1] == ["b"]
    assert not (play.folder / "b.part").exists()
    assert (play.folder / "b" / "x").read_text() == "else"


def test_a_killed_act_goes_on_from_what_it_left(play, monkeypatch):
    def killed():
        (play.folder / "b.part").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(play, "write_b", killed)
    with pytest.raises(KeyboardInterrupt):
        play.run()
    monkeypatch.undo()
    assert play.run()[1] == ["b"]
    assert (play.folder / "b.part").read_text() == "half"


def test_another_recipe_is_refused(play):
    play.run()
    with pytest.raises(UserError, match="other settings") as caught:
        play.run({"minutes": 5, "seed": 0})
    assert "minutes = 5" in str(caught.value)


def test_a_choice_is_made_once(tmp_path):
    assert Ledger(tmp_path / "r.json", RECIPE, 1).once("minutes", lambda: 4.5) == 4.5
    assert Ledger(tmp_path / "r.json", RECIPE, 1).once("minutes", lambda: 9.0) == 4.5


def test_time_of_earlier_runs_counts(play):
    play.run()
    seconds = Ledger(play.folder / "record.json", RECIPE, 2)
    assert seconds.seconds >= sum(seconds.act_seconds.values()) >= 0
    assert set(seconds.act_seconds) == {"a", "b"}


@pytest.mark.parametrize(
    ("taps", "wrong"),
    [
        ("layer:1,layer:14,layer:26", "layer:14,layer:26,layer:29"),
        ("embed,layer:2,layer:14", "layer:2,layer:14,layer:17"),
        ("layer:14,layer:28", "layer:28,layer:29"),
        ("layer:1,layer:14,layer:29", "layer:0,layer:13,layer:28"),
        ("embed,final", "embed,layer:28"),
    ],
)
def test_wrong_states_are_others_and_exist(taps, wrong):
    fed = wrong_taps(parse_taps(taps), 30)
    assert format_taps(fed) == wrong
    for tap in fed:
        tap.check(30)


def test_recipe_fits_its_time():
    assert Recipe.for_minutes(11).evaluated == 20
    assert Recipe.for_minutes(2).num_chats < Recipe.for_minutes(11).num_chats
    assert Recipe.for_minutes(11).seconds_behind < 5 * 60, "training gets about half of it"
    with pytest.raises(UserError, match="--minutes"):
        Recipe.for_minutes(1)
