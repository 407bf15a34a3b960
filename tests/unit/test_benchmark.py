"""The benchmark's arithmetic and fairness, with contenders whose speed is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from eyas.evaluate.answers import Prompt

PATH = Path(__file__).parents[2] / "benchmarks" / "loop.py"


@pytest.fixture(scope="module")
def loop():
    spec = importlib.util.spec_from_file_location("benchmark_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


PROMPTS = [Prompt(str(number), "", (1, 2)) for number in range(6)]


def test_every_contender_answers_every_prompt_and_begins_equally_often(loop):
    calls = []

    def contender(name):
        def answer(prompt):
            calls.append((prompt.id, name))
            return loop.Timed((1,), 0.1, 0.2)

        return answer

    results = loop.race({name: contender(name) for name in ("plain", "transformers", "speculative_k1")}, PROMPTS)
    assert {name: len(runs) for name, runs in results.items()} == {"plain": 6, "transformers": 6, "speculative_k1": 6}
    timed = calls[3:]  # the first three warm up
    first = [timed[start][1] for start in range(0, len(timed), 3)]
    assert {name: first.count(name) for name in set(first)} == {"plain": 2, "transformers": 2, "speculative_k1": 2}
    assert all(len({prompt for prompt, _ in timed[start : start + 3]}) == 1 for start in range(0, len(timed), 3))


def test_rates_and_ratios(loop):
    runs = {
        "transformers": [loop.Timed((1, 2, 3, 4), None, 4.0), loop.Timed((1, 2, 3, 4), None, 8.0)],
        "plain": [loop.Timed((1, 2, 3, 4), 0.5, 2.0), loop.Timed((1, 2, 3, 4), 1.0, 4.0)],
        "speculative_k1": [loop.Timed((1, 2, 3, 4), 0.5, 1.25), loop.Timed((1, 2, 3), 1.0, 1.5)],
    }
    figures = loop.speed_figures(runs)
    assert figures["plain"]["decode_tokens_per_second"] == pytest.approx(1.5)  # 3 / 1.5 and 3 / 3
    assert figures["plain"]["total_over_transformers"] == pytest.approx(2.0)
    assert figures["speculative_k1"]["decode_over_plain"] == pytest.approx(3.0)  # 2 and 4 times
    assert figures["speculative_k1"]["answers_equal_to_plain"] == 0.5
    assert figures["transformers"]["decode_over_plain"] is None  # its prefill is not told apart


def test_an_answer_of_one_token_has_no_decode_rate(loop):
    assert loop.Timed((1,), 0.1, 0.2).decode_rate is None
    assert loop.ratio([loop.Timed((1,), 0.1, 0.2)], [loop.Timed((1,), 0.1, 0.2)], "decode_rate") is None


@pytest.mark.parametrize(("ratio", "met"), [(1.3, True), (1.2, False)])
def test_goals_take_the_best_k_and_leave_loops_out(loop, ratio, met):
    speed = {
        "plain": {"total_over_transformers": 1.1},
        "speculative_k1": {"decode_over_plain": 1.1},
        "speculative_k2": {"decode_over_plain": ratio},
    }
    without = {"first_token_accuracy": 0.5, "acceptance_length_measured": 1.5}
    goals = {goal["figure"]: goal for goal in loop.judge(speed, {"loops": {"without_loops": without}})}
    assert goals["best_speculative_over_plain"]["got"] == ratio
    assert goals["best_speculative_over_plain"]["met"] is met
    assert goals["acceptance_length_measured"]["met"] is False
    assert goals["first_token_accuracy"]["met"] is True
