"""What the real vLLM 0.32.0 wrote while it served SmolLM2 with its draft (K = 3): the page of its counters, and its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.doctor.log_trends import lines_of
from eyas.doctor.reading_files import Told, read_log, read_metrics
from eyas.doctor.server.counters import Counters, between, counters_in

RECORDED = Path(__file__).parent / "recorded"
PAGE, LOG = RECORDED / "vllm-0.32.0-metrics.txt", RECORDED / "vllm-0.32.0.log"


def test_its_page():
    [reading] = read_metrics(PAGE, Told())
    assert (reading.num_draft_tokens, reading.rounds, reading.oddities) == (3, 661, ())
    assert [item.value for item in reading.unconditional] == pytest.approx([360 / 661, 200 / 661, 113 / 661])
    assert reading.acceptance_length.value == pytest.approx(1 + 673 / 661)


def test_the_counters_of_a_server_that_is_asked():
    found = counters_in(PAGE.read_text(), "smollm2")
    assert (found.rounds, found.proposed, found.accepted, found.positions) == (661, 1983, 673, (360, 200, 113))
    assert (found.generated, found.running, found.speculative) == (1349, 0, True)
    assert between(Counters(speculative=True), found, 1349, "here").rounds == 661
    assert counters_in(PAGE.read_text(), "another") == Counters()


def test_its_log():
    log = read_log(LOG, Told())
    assert (log.reading.num_draft_tokens, log.reading.rounds, log.reading.oddities) == (3, 42 / 3, ())
    assert log.reading.acceptance_length.value == pytest.approx(1 + 26 / 14)
    assert len(log.lengths) == 6
    assert [line.running for line in lines_of(LOG.read_text())] == [1.0] * 6
