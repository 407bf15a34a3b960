"""Was a prefill that ranks share put together again? The doctor answers by the target's config and by the rows of the slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eyas.capture.check import SlotVerdict
from eyas.doctor.replay.dump_slots import check_prefill

ORDER = "zig-zag order of 2 ranks, one rank after the other"


def slot(number: int, verdict: str, detail: str = "", found: str | None = "layer:1") -> SlotVerdict:
    return SlotVerdict(number, "layer:1", found, None if found is None else 0.002, 0.4, "mid:1", verdict, detail)


def exam(slots: Any, **config: Any) -> Any:
    return SimpleNamespace(loaded_target=SimpleNamespace(config=SimpleNamespace(**config)), slot_verdicts=slots)


def test_without_an_indexer_and_with_rows_in_order_it_is_ruled_out_by_both():
    outcome = check_prefill(exam((slot(0, "right"), slot(1, "off by one")), kv_lora_rank=512))
    assert outcome.judgement == "ruled out"
    (evidence,) = outcome.evidence
    assert "no sparse attention" in evidence.text and "2 of 2 slots stand in the text's order" in evidence.text
    assert evidence.numbers == {"index_topk": None, "distance": 0.002}


def test_an_indexer_alone_is_no_guilt():
    outcome = check_prefill(exam((slot(0, "right"),), index_topk=2048))
    assert outcome.judgement == "ruled out" and "index_topk 2048" in outcome.evidence[0].text


@pytest.mark.parametrize(
    ("verdict", "detail", "code"),
    [
        ("rows differ from a position on", "", "context-lost"),
        ("rows permuted", ORDER, "states-scattered"),
        ("rows scattered", "only the rows of rank 0 of 2, zig-zag", "states-scattered"),
    ],
)
@pytest.mark.parametrize("config", [{"index_topk": 64}, {}])
def test_rows_that_were_not_put_together_are_found_on_any_target(verdict: str, detail: str, code: str, config: dict[str, int]):
    outcome = check_prefill(exam((slot(0, "right"), slot(1, verdict, detail)), **config))
    assert outcome.judgement == "confirmed"
    assert [fault.code for fault in outcome.faults] == [code]


@pytest.mark.parametrize("verdict", ["columns scattered", "partial", "another state"])
def test_other_faults_are_not_laid_at_its_door(verdict: str):
    assert check_prefill(exam((slot(0, verdict),))).judgement == "ruled out"


@pytest.mark.parametrize("verdict", ["rows permuted", "rows shifted", "some rows differ"])
def test_rows_that_stand_otherwise_do_not_speak_for_it(verdict: str):
    other = slot(0, verdict, "in no order that has a name")
    assert check_prefill(exam((other,))).judgement == "suspected"
    assert "1 of 2 slots" in check_prefill(exam((other, slot(1, "right")))).evidence[0].text


def test_where_no_slot_is_known_nothing_is_ruled_out():
    assert check_prefill(exam((slot(0, "unknown", found=None),))).judgement == "suspected"
    assert check_prefill(exam("fewer than 128 positions of the dump can be compared")).judgement == "cannot be tested"
