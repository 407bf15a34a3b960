"""What a layout splits, and the hours that follow."""

from __future__ import annotations

import pytest
from plan_parts import shape_of

from eyas.errors import UserError
from eyas.plan.config import read_config
from eyas.plan.draft import draft_cost
from eyas.plan.gpus import Fleet
from eyas.plan.hours import Rates, offline, online
from eyas.plan.memory import Layout, best, candidates, layout_cost
from eyas.plan.plan import Request, make_plan
from eyas.plan.weights import read_weights


def cost(shape, weights, layout, tokens=4096, gpus="64xH200"):
    return layout_cost(shape, weights, layout, Fleet.parse(gpus), tokens=tokens, num_taps=3)


def test_tensor_parallelism_splits_what_it_can_and_context_parallelism_activations_only():
    shape, weights = shape_of("Llama-3.3-70B"), read_weights(read_config("Llama-3.3-70B"))
    one, tp, cp = (cost(shape, weights, layout) for layout in (Layout(1), Layout(8), Layout(1, 8)))
    assert tp.weight_bytes == pytest.approx(one.weight_bytes / 8, rel=0.01)
    assert tp.cache_bytes == one.cache_bytes / 8
    assert (cp.weight_bytes, cp.cache_bytes) == (one.weight_bytes, one.cache_bytes)
    assert cp.activation_bytes < one.activation_bytes / 2


def test_more_ranks_than_key_value_heads_repeat_them():
    shape, weights = shape_of("Llama-3.3-70B"), read_weights(read_config("Llama-3.3-70B"))
    assert cost(shape, weights, Layout(16)).cache_bytes == cost(shape, weights, Layout(8)).cache_bytes


def test_latents_stand_on_every_rank():
    shape, weights = shape_of("Kimi-K2.5"), read_weights(read_config("Kimi-K2.5"))
    assert cost(shape, weights, Layout(8, 1, 8)).cache_bytes == cost(shape, weights, Layout(1, 1, 8)).cache_bytes == 4096 * 70_272


def test_experts_can_be_spread_wider_than_a_copy():
    shape, weights = shape_of("Kimi-K2.5"), read_weights(read_config("Kimi-K2.5"))
    narrow, wide = cost(shape, weights, Layout(8, 1, 8)), cost(shape, weights, Layout(8, 1, 64))
    experts = shape.parts.experts * 4.5 / 8
    assert narrow.weight_bytes - wide.weight_bytes == pytest.approx(experts / 8 - experts / 64)


def test_all_candidates_can_be_and_the_taken_one_keeps_the_fewest_together():
    shape, weights, fleet = shape_of("DeepSeek-V3"), read_weights(read_config("DeepSeek-V3")), Fleet.parse("32xH200")
    found = candidates(shape, fleet)
    assert all(layout.problem(shape, fleet.count) is None for layout in found)
    costs = [layout_cost(shape, weights, layout, fleet, tokens=4096, num_taps=3) for layout in found]
    taken = best(costs)
    assert taken.layout.gpus_together == min(item.layout.gpus_together for item in costs if item.fits) == 8


@pytest.mark.parametrize("text", ["tp=3", "tp=128", "cp=2", "tp=8,pp=2", "tp=8,ep=7", "tp=8,cp=2", "tp=0", ""])
def test_a_layout_that_cannot_be_is_refused(text):
    with pytest.raises(UserError) as caught:
        Layout.parse(text, shape_of("DeepSeek-V3"), Fleet.parse("8xH200"))
    assert caught.value.allowed


FAST = Rates(capture=1000, train=500, disk=1e12, network=1e12)


def test_offline_adds_up_and_the_disk_can_limit():
    run = offline(FAST, gpus=8, capture_gpus=8, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (run.capture_hours, run.train_hours, run.limit) == (0.125, 0.5, "training")
    slow = offline(Rates(1000, 500, 1e4, 1e12), gpus=8, capture_gpus=8, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (slow.capture_hours, slow.train_hours, slow.limit) == (1.0, 2.0, "reading the dump")
    assert slow.bytes_per_second == 1e4


def test_online_takes_the_best_split_and_captures_every_epoch():
    run = online(FAST, gpus=8, gpus_together=2, tokens=3_600_000, epochs=2, bytes_per_token=10)
    assert (run.capture_gpus, run.train_gpus, run.limit) == (2, 6, "capture")
    assert run.hours == 2 * 3_600_000 / 2000 / 3600
    slow = online(Rates(1000, 500, 1e12, 1e4), gpus=8, gpus_together=2, tokens=3_600_000, epochs=1, bytes_per_token=10)
    assert (slow.limit, slow.hours) == ("the network", 1.0)


def test_online_needs_a_gpu_beside_the_target():
    assert online(FAST, gpus=8, gpus_together=8, tokens=1000, epochs=1, bytes_per_token=10) is None


def test_rates_that_are_given_are_taken_and_no_longer_listed_as_assumed():
    given = {"capture_rate": 123.0, "train_rate": 45.0, "disk_rate": 1e9, "network_rate": 2e9, "draft_vocab_size": 32000}
    plan = make_plan(read_config("Llama-3.1-8B"), Request(Fleet.parse("2xH100"), tokens=1000, **given))
    assert (plan.rates, plan.assumed) == (Rates(123.0, 45.0, 1e9, 2e9), ())
    assert len(make_plan(read_config("Llama-3.1-8B"), Request(Fleet.parse("2xH100"), tokens=1000)).assumed) == 5


def test_a_longer_unroll_costs_its_steps():
    shape = shape_of("Llama-3.1-8B")
    one, four = (draft_cost(shape, num_taps=3, draft_vocab_size=8192, ttt_steps=steps, rows=2048) for steps in (1, 4))
    assert four.parameters == one.parameters
    assert four.flops_per_row - one.flops_per_row == 6 * 3 * (one.attention + one.mlp + one.head)
