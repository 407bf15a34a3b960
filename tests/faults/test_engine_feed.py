"""What an engine feeds is read in tables, and then measured: the measurement has the last word."""

from __future__ import annotations

from typing import Any

from eyas.doctor import diagnose
from eyas.doctor.exhibits import Options
from eyas.doctor.hypothesis import Diagnosis
from seeded.behaviour import DRAFT_ONLY, IDS
from seeded.behaviour import ids as ids_of
from seeded.edits import foreign
from seeded.examine import ROWS
from seeded.sets import Set

OPTIONS = Options(depths=("static", "weights", "replay"), rows=ROWS)


def served(s: Set, ids: list[int]) -> Diagnosis:
    """A draft with these ids, for both runners of vLLM, in the config of a project that means outputs of layers by them."""

    def change(config: dict[str, Any]) -> None:
        config.pop(IDS, None)
        config["eagle_config"] = {IDS: ids, "layer_ids": ids, "use_aux_hidden_state": True}

    planted = foreign(s, "specforge", change).but(engine="vllm==0.33.0", given=DRAFT_ONLY)
    return diagnose(planted.exhibits(), OPTIONS)


def test_an_engine_that_feeds_a_misread_config_rightly_is_acquitted(set_of):
    found = served(set_of("llama"), [1, 2, 3])
    assert [(item.code, item.subject) for item in found.findings] == [("taps-shifted", "draft")]
    judged = [item.outcome for item in found.tested if item.hypothesis.code == "taps-engine"]
    assert [item.judgement for item in judged] == ["suspected", "ruled out"]
    assert "measured: vllm 0.33.0 feeds" in judged[0].evidence[-1].text
    assert any("it gets what it was trained on" in note for note in found.notes)


def test_a_wrong_feed_is_weighed_in_accuracy(set_of):
    found = served(set_of("llama"), [0, 1, 2])
    (only,) = found.findings
    assert (only.code, only.subject, only.verified) == ("taps-engine", "engine", True)
    assert only.evidence[0].numbers["own"] > only.evidence[0].numbers["fed"]


def test_an_engine_that_feeds_what_a_wrong_config_declares_is_not_to_blame(set_of):
    """A speculators config means boundaries by its ids, as vLLM does."""
    planted = ids_of("speculators", [2, 3, 4])(set_of("llama")).but(engine="vllm==0.33.0")
    found = diagnose(planted.exhibits(), OPTIONS)
    assert [(item.code, item.subject) for item in found.findings] == [("taps-shifted", "draft")]
