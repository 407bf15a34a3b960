"""What servers report: each engine's counts in common terms, and figures that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.doctor.exhibits import Exhibits, Options
from eyas.doctor.reading_files import Told, read_log, read_metrics
from eyas.doctor.readings import find_oddities, read, wilson
from eyas.doctor.runner import examine
from eyas.doctor.server_figures import ServerFigures, drafts_only_in
from eyas.errors import UserError

PROMETHEUS_VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1440.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 760.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 440.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 240.0
"""
VLLM_LINE = (
    "INFO 07-01 10:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.44, Accepted throughput: 14.40 tokens/s, "
    "Drafted throughput: 30.00 tokens/s, Accepted: 1440 tokens, Drafted: 3000 tokens, "
    "Per-position acceptance rate: 0.760, 0.440, 0.240, Avg Draft acceptance rate: 48.0%"
)


def saved(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "saved"
    path.write_text(text)
    return path


def sglang(length: float, rate: float, drafted: int) -> str:
    values = {"accept_length": length, "accept_rate": rate, "num_draft_tokens": drafted}
    return "".join(f'# TYPE sglang:spec_{name} gauge\nsglang:spec_{name}{{tp_rank="0"}} {value}\n' for name, value in values.items())


def test_vllm_counters_become_rates_by_position(tmp_path):
    [reading] = read_metrics(saved(tmp_path, PROMETHEUS_VLLM), Told())
    assert reading.oddities == ()
    assert (reading.engine, reading.num_draft_tokens, reading.rounds) == ("vllm", 3, 1000)
    assert [item.value for item in reading.unconditional] == [0.76, 0.44, 0.24]
    assert [item.value for item in reading.conditional] == [0.76, pytest.approx(440 / 760), pytest.approx(240 / 440)]
    assert reading.acceptance_length.value == pytest.approx(2.44)
    assert 2.3 < reading.acceptance_length.low < 2.44 < reading.acceptance_length.high < 2.6
    assert 0.73 < reading.unconditional[0].low < 0.76 < reading.unconditional[0].high < 0.79


def test_engine_processes_of_one_server_are_added_up(tmp_path):
    other = PROMETHEUS_VLLM.replace('engine="0"', 'engine="1"').splitlines()
    text = PROMETHEUS_VLLM + "".join(f"{line}\n" for line in other if not line.startswith("#"))
    [reading] = read_metrics(saved(tmp_path, text), Told())
    assert reading.rounds == 2000
    assert reading.acceptance_length.value == pytest.approx(2.44)


def test_a_vllm_log_says_the_same_as_its_counters(tmp_path):
    log = read_log(saved(tmp_path, f"{VLLM_LINE}\nother\n{VLLM_LINE}\n"), Told())
    assert log.reading.oddities == ()
    assert log.reading.rounds == 2000
    assert log.lengths == (2.44, 2.44)
    assert [item.value for item in log.reading.unconditional] == pytest.approx([0.76, 0.44, 0.24])


@pytest.mark.parametrize(("version", "rate"), [("0.5.10", 2.44 / 4), ("0.5.10.post1", 2.44 / 4), ("0.5.11", 0.48), ("0.5.23", 0.48)])
def test_sglang_rates_divide_by_another_count_in_each_version(tmp_path, version, rate):
    [reading] = read_metrics(saved(tmp_path, sglang(2.44, rate, 4)), Told(version=version))
    assert reading.oddities == ()
    assert reading.num_draft_tokens == 3
    assert reading.acceptance_length.value == 2.44
    assert reading.unconditional[0].value is None
    assert (reading.unconditional[0].low, reading.unconditional[0].high) == (pytest.approx(0.48), 1.0)
    assert reading.unconditional[2].high == pytest.approx(0.48)


def test_a_rate_alone_is_not_guessed_at_without_a_version():
    report = ServerFigures("sglang", "x", num_draft_tokens=3, acceptance_rate=0.48, drafts_only=None)
    assert read(report).acceptance_length is None
    assert "1.92 up to SGLang 0.5.10, 2.44 since" in read(report).notes[0]


def test_counters_of_a_version_that_counts_no_rounds(tmp_path):
    """Proposed and accepted tokens alone are a rate; with K they are rounds, too."""
    path = saved(
        tmp_path, "".join(f"{line}\n" for line in PROMETHEUS_VLLM.splitlines() if "num_drafts" not in line and "_per_pos" not in line)
    )
    [reading] = read_metrics(path, Told(num_draft_tokens=3))
    assert (reading.rounds, reading.acceptance_length.value) == (1000, pytest.approx(2.44))
    [reading] = read_metrics(path, Told())
    assert reading.acceptance_length is None
    assert "--num-draft-tokens" in reading.notes[0]


def test_figures_of_another_name_are_said(tmp_path):
    with pytest.raises(UserError, match="engine_spec_accepted"):
        read_metrics(saved(tmp_path, "engine_spec_accepted 5\nother 3\n"), Told())


def test_drafts_only_in_a_version():
    assert [drafts_only_in(text) for text in ("0.5.10.post1", "0.5.11", "0.6.0rc1", None, "main")] == [False, True, True, None, None]


def test_a_sglang_log_with_k_from_its_arguments(tmp_path):
    lines = (
        "server_args=ServerArgs(speculative_num_draft_tokens=4)\nDecode batch. #running-req: 1, accept len: 2.44, accept rate: 0.48, cuda\n"
    )
    log = read_log(saved(tmp_path, lines), Told(version="0.5.14"))
    assert log.reading.num_draft_tokens == 3
    assert log.reading.oddities == ()
    old = read_log(saved(tmp_path, "accept len: 1.31, cuda graph: True"), Told(num_draft_tokens=3))
    assert old.reading.acceptance_length.value == 1.31


def test_of_several_runs_in_a_log_the_last_with_figures_is_read(tmp_path):
    """Two runs of other K and another draft have no trend in common."""
    first = ["server_args=ServerArgs(speculative_num_draft_tokens=6)", "Started server process [7]", *["accept len: 3.40"] * 12]
    second = ["server_args=ServerArgs(speculative_num_draft_tokens=4)", "Started server process [8]", *["accept len: 1.80"] * 12]
    third = ["server_args=ServerArgs(speculative_num_draft_tokens=2)", "Started server process [9]"]
    path = saved(tmp_path, "\n".join((*first, *second, *third)))
    log = read_log(path, Told())
    assert (log.runs, log.reading.num_draft_tokens, log.lengths) == (2, 3, (1.8,) * 12)
    found = examine(Exhibits(log=path), Options(depths=("static",)))[0]
    assert found.findings == ()
    assert any("2 runs" in note for note in found.notes)


def test_a_histogram_of_a_request_gives_every_position(tmp_path):
    answer = {
        "text": "x",
        "meta_info": {"spec_verify_ct": 10, "spec_num_correct_drafts": 14, "spec_correct_drafts_histogram": [2, 4, 2, 2]},
    }
    answer["meta_info"] |= {"completion_tokens": 25, "spec_accept_length": 2.5, "spec_accept_rate": 14 / 30}
    [reading] = read_metrics(saved(tmp_path, json.dumps(answer)), Told())
    assert reading.oddities == ()
    assert [item.value for item in reading.unconditional] == [0.8, 0.4, 0.2]
    assert reading.acceptance_length.value == pytest.approx(2.4)
    assert "prefill" in reading.notes[0]
    [both] = read_metrics(saved(tmp_path, f"{json.dumps(answer)}\n{json.dumps(answer)}\n"), Told())
    assert both.rounds == 20


def test_a_report_of_our_own_is_read(tmp_path):
    measured = {"num_draft_tokens": 3, "rounds": 100, "proposed": 296, "accepted": 140, "emitted": 239}
    measured |= {"vllm_acceptance_length": 2.4, "acceptance_length": 2.39, "unconditional": [0.8, 0.41, 0.2]}
    [reading] = read_metrics(saved(tmp_path, json.dumps({"measured": measured, "num_draft_tokens": 3})), Told())
    assert reading.engine == "eyas"
    assert reading.num_draft_tokens == 3
    assert reading.oddities == ()


GOOD = ServerFigures("vllm", "x", rounds=100, proposed=300, accepted=144, position_counts=(76, 44, 24), acceptance_length=2.44)
ODD = [
    ({"acceptance_rate": 1.42}, "impossible", "above 1"),
    ({"acceptance_length": 4.7}, "impossible", r"above K \+ 1"),
    ({"acceptance_length": float("nan")}, "impossible", "no count and no share"),
    ({"rounds": -5.0}, "impossible", "no count and no share"),
    ({"acceptance_length": 1.44}, "other definition", "leaves out the target's own token"),
    ({"acceptance_length": 3.44}, "other definition", "one token a round too many"),
    ({"acceptance_length": 2.0}, "impossible", "does not follow from the counts"),
    ({"accepted": 310.0, "position_counts": (110.0, 100.0, 100.0)}, "impossible", "more tokens were accepted than proposed"),
    ({"position_counts": (76, 24, 44)}, "impossible", "more often than the one before"),
    ({"position_counts": (76, 44)}, "impossible", "do not add up"),
    ({"proposed": 400.0}, "impossible", "more tokens were proposed than 100 rounds of 3"),
]


@pytest.mark.parametrize(("change", "kind", "words"), ODD)
def test_figures_that_cannot_be_are_found(change, kind, words):
    import dataclasses
    import re

    assert find_oddities(GOOD) == ()
    report = dataclasses.replace(GOOD, **change)
    found = find_oddities(report)
    assert any(item.kind == kind and re.search(words, item.what) for item in found), found
    assert (read(report).acceptance_length is None) == any(item.kind == "impossible" for item in found)


def test_sglangs_count_taken_for_k_is_found():
    report = ServerFigures("sglang", "x", num_draft_tokens=4, acceptance_length=2.44, acceptance_rate=0.48)
    [found] = find_oddities(report)
    assert (found.kind, found.got, found.allowed) == ("other definition", "K = 4", "K = 3")
    report = ServerFigures("sglang", "x", num_draft_tokens=3, acceptance_length=2.44, acceptance_rate=0.9)
    assert find_oddities(report)[0].kind == "impossible"


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", "# nothing\nother 1\n", '{"a": ', "vllm:spec_decode_num_drafts_total{x 1\n"])
def test_a_file_without_figures_is_refused(tmp_path, text):
    with pytest.raises(UserError):
        read_metrics(saved(tmp_path, text), Told())
    with pytest.raises(UserError):
        read_log(saved(tmp_path, text), Told())


def test_missing_files_are_refused(tmp_path):
    for reader in (read_metrics, read_log):
        with pytest.raises(UserError, match="cannot be read"):
            reader(tmp_path / "none", Told())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.sampled_from([True, False]))
def test_any_true_log_of_rounds_is_free_of_oddities_and_lies_in_its_bounds(accepted, drafts_only):
    """Rounds as they were: counts, mean and rate say the same, and what a mean alone tells holds the truth."""
    rounds, total = len(accepted), sum(accepted)
    counts = tuple(sum(one > place for one in accepted) for place in range(4))
    whole = ServerFigures("vllm", "x", rounds=rounds, proposed=4 * rounds, accepted=total, position_counts=counts)
    assert find_oddities(whole) == ()
    length = 1 + total / rounds
    rate = total / (4 * rounds) if drafts_only else length / 5
    mean = ServerFigures("sglang", "x", num_draft_tokens=4, acceptance_length=length, acceptance_rate=rate, drafts_only=drafts_only)
    assert find_oddities(mean) == ()
    for exact, bound in zip(read(whole).unconditional, read(mean).unconditional, strict=True):
        assert bound.low - 1e-9 <= exact.value <= bound.high + 1e-9
        assert exact.low <= exact.value <= exact.high


def test_wilson_is_the_textbooks():
    found = wilson(9, 10)
    assert (found.low, found.high) == (pytest.approx(0.5958, abs=1e-3), pytest.approx(0.9821, abs=1e-3))
    assert wilson(0, 0).value is None
