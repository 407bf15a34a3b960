"""`trace check` names what a slot really holds: 100 % of plain slots, and every way in which a capture goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from eyas.capture.check import Capture, CheckReport, check_captures, with_exchanges
from eyas.capture.fingerprint import Trace
from eyas.capture.reference import Reference, reference_of_target, reference_of_trace
from eyas.capture.rounding import Look, rounded, to_int8
from eyas.capture.rows import round_robin, zig_zag
from eyas.capture.trace import named_states, record_trace
from eyas.errors import UserError
from eyas.taps import Tap
from eyas.targets.loading import load_target
from eyas.targets.target import Target

FAMILIES = ("llama", "deepseek_v3", "gemma3_text")
TAPS = (Tap(0), Tap(2), Tap(3))


@dataclass(frozen=True)
class World:
    target: Target
    trace: Trace
    states: dict[str, torch.Tensor]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.trace.token_ids.tolist())

    @property
    def reference(self) -> Reference:
        return reference_of_trace(self.trace, [self.ids])

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        return torch.stack([self.states[name] for name in names], dim=1)

    def check(self, *ranks: torch.Tensor, expected: Sequence[Tap] | None = None, reference: Reference | None = None) -> CheckReport:
        captures = [Capture((self.ids,), (states,), f"rank {number}") for number, states in enumerate(ranks)]
        return check_captures(reference or self.reference, captures, expected)

    def one(self, *ranks: torch.Tensor, reference: Reference | None = None) -> tuple[str | None, str, str]:
        """(found, verdict, detail) of ranks that hold one slot [N, W]."""
        slot = self.check(*(rank[:, None] for rank in ranks), reference=reference).slots[0]
        return slot.found, slot.verdict, slot.detail


def make_world(folder: str) -> World:
    target = load_target(folder, device=torch.device("cpu"), dtype=torch.float32)
    trace = record_trace(target)
    return World(target, trace, named_states(target, trace.token_ids.tolist()))


@pytest.fixture(scope="module", params=FAMILIES)
def any_world(request, tiny_targets) -> World:
    return make_world(str(tiny_targets(request.param)))


@pytest.fixture(scope="module")
def world(tiny_targets) -> World:
    return make_world(str(tiny_targets("llama")))


def rounded_states(world: World) -> dict[str, torch.Tensor]:
    """Every state of a target whose weights are rounded to int8."""
    with rounded(world.target, to_int8):
        return named_states(world.target, list(world.ids))


@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: x.bfloat16(), lambda x: torch.stack([to_int8(part) for part in x.unbind(1)], 1)],
    ids=["fp32", "bf16", "int8 states"],
)
def test_every_state_is_found_by_its_name(any_world: World, change: Callable[[torch.Tensor], torch.Tensor]):
    names = [name for name in any_world.trace.state_names if not name.startswith("mid:")]
    expected = [Tap.parse(name) for name in names]
    report = any_world.check(change(any_world.stacked(names)), expected=expected)
    assert [slot.verdict for slot in report.slots] == ["right"] * len(names), [slot.text() for slot in report.slots]
    assert report.ok
    for slot in report.slots:
        assert slot.distance <= 0.8 * slot.next_best


def test_states_of_int8_weights_are_found_too(any_world: World):
    states = rounded_states(any_world)
    names = [name for name in states if name.startswith("boundary:")]
    report = any_world.check(torch.stack([states[name] for name in names], 1), expected=[Tap.parse(name) for name in names])
    assert report.ok, [slot.text() for slot in report.slots]


@pytest.mark.parametrize(("first", "second"), [(1, 2), (0, 2)], ids=["neighbours", "far apart"])
def test_two_slots_that_hold_each_others_state_are_exchanged(world: World, first: int, second: int):
    names = ["boundary:0", "boundary:2", "boundary:3"]
    names[first], names[second] = names[second], names[first]
    slots = with_exchanges(world.check(world.stacked(names), expected=TAPS)).slots
    assert (slots[first].verdict, slots[first].detail) == ("exchanged", f"with slot {second}")
    assert (slots[second].verdict, slots[second].detail) == ("exchanged", f"with slot {first}")
    assert [slot.slot for slot in slots if slot.ok] == sorted({0, 1, 2} - {first, second})


def test_a_cycle_of_three_and_a_shift_are_no_exchange(world: World):
    for names in (["boundary:2", "boundary:3", "boundary:0"], ["boundary:2", "boundary:3", "boundary:4"]):
        report = world.check(world.stacked(names), expected=TAPS)
        assert with_exchanges(report) == report


def test_the_kimi_case_is_named_slot_by_slot(world: World):
    report = world.check(world.stacked(["boundary:2", "boundary:3", "boundary:4"]), expected=TAPS)
    assert [(slot.expected, slot.found) for slot in report.slots] == [("embed", "layer:1"), ("layer:1", "layer:2"), ("layer:2", "layer:3")]
    assert [slot.verdict for slot in report.slots] == ["another state", "off by one", "off by one"]
    assert not report.ok
    assert report.slots[0].text().startswith("slot 0 holds layer:1 (distance")
    assert "expected embed" in report.slots[0].text()


@pytest.mark.parametrize("by", [1, -1, 3])
def test_shifted_rows(world: World, by: int):
    found, verdict, detail = world.one(world.states["boundary:2"].roll(-by, 0))
    assert (found, verdict) == ("layer:1", "rows shifted")
    assert f"by {by:+d}" in detail


@pytest.mark.parametrize(("split", "name"), [(zig_zag, "zig-zag"), (round_robin, "round-robin")])
@pytest.mark.parametrize("ranks", [2, 4])
def test_orders_of_context_parallelism(world: World, split, name: str, ranks: int):
    shares = split(len(world.ids), ranks)
    found, verdict, detail = world.one(world.states["boundary:3"][torch.cat(shares)])
    assert (found, verdict) == ("layer:2", "rows permuted")
    assert detail.startswith(f"{name} order of {ranks} ranks")
    found, verdict, detail = world.one(world.states["boundary:3"][shares[1]])
    assert (found, verdict) == ("layer:2", "rows scattered")
    assert f"rank 1 of {ranks}" in detail
    found, verdict, detail = world.one(*(world.states["boundary:3"][share] for share in shares))
    assert (found, verdict) == ("layer:2", "rows scattered")


def test_an_order_without_a_name(world: World):
    order = torch.randperm(len(world.ids), generator=torch.Generator().manual_seed(0))
    found, verdict, _ = world.one(world.states["boundary:2"][order])
    assert (found, verdict) == ("layer:1", "rows permuted")


def test_rows_of_one_rank(world: World):
    found, verdict, detail = world.one(world.states["boundary:2"][40:80])
    assert (found, verdict) == ("layer:1", "rows scattered")
    assert "from position 40" in detail
    zeros = world.states["boundary:2"].clone()
    zeros[::2] = 0
    assert world.one(zeros)[:2] == ("layer:1", "rows scattered")


def test_columns_of_one_rank(world: World):
    shares = world.states["boundary:2"].chunk(4, dim=-1)
    assert world.one(shares[1])[:2] == (None, "columns scattered")
    assert world.one(*shares)[:2] == ("layer:1", "columns scattered")
    by_target = reference_of_target(world.target, [world.ids], shares[1].shape[-1])
    found, verdict, detail = world.one(shares[1], reference=by_target)
    assert (found, verdict) == ("layer:1", "columns scattered")
    assert f"columns from {shares[0].shape[-1]}" in detail


def test_normed_states(world: World):
    state = world.states["boundary:2"]
    weights = 0.5 + torch.rand(state.shape[-1], generator=torch.Generator().manual_seed(0))
    world.target.layers[2].input_layernorm.weight.data.copy_(weights)
    try:
        by_target = reference_of_target(world.target, [world.ids], state.shape[-1])
        assert world.one(world.target.layers[2].input_layernorm(state), reference=by_target)[:2] == ("layer:1", "normed")
    finally:
        world.target.layers[2].input_layernorm.weight.data.fill_(1.0)
    bare = state / state.pow(2).mean(-1, keepdim=True).sqrt() * torch.linspace(0.5, 2, len(state))[:, None]
    assert world.one(bare)[:2] == ("layer:1", "normed")
    last = world.check(world.stacked(["final"]), expected=[Tap(world.target.num_layers)]).slots[0]
    assert (last.found, last.verdict) == ("final", "normed")


def test_rows_of_which_some_are_wrong(world: World):
    state = world.states["boundary:2"].clone()
    wrong = torch.randperm(len(state), generator=torch.Generator().manual_seed(0))[:60]
    state[wrong] = state[wrong.roll(1)]
    assert world.one(state)[:2] == ("layer:1", "some rows differ")


def test_another_scale_and_numbers_that_are_none(world: World):
    found, verdict, detail = world.one(world.states["boundary:2"] / 4)
    assert (found, verdict) == ("layer:1", "scaled")
    assert "0.25 times" in detail
    broken = world.states["boundary:2"].clone()
    broken[7, 3] = float("nan")
    assert world.one(broken)[:2] == (None, "not finite")
    assert world.one(torch.randn(broken.shape, generator=torch.Generator().manual_seed(0)))[0] is None
    assert world.one(torch.zeros_like(broken))[:2] == (None, "unknown")


def shares_of(branch: torch.Tensor, ranks: int, seed: int = 0) -> list[torch.Tensor]:
    """Shares of unequal directions that sum to `branch`, as the ranks of a row-parallel layer have them."""
    generator = torch.Generator().manual_seed(seed)
    noise = [torch.randn(branch.shape, generator=generator) * branch.std() / ranks**0.5 for _ in range(ranks)]
    mean = torch.stack(noise).mean(0)
    return [branch / ranks + part - mean for part in noise]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("before", "after"), [("mid:2", "boundary:3"), ("boundary:2", "mid:2")])
def test_partial_states_of_several_ranks(world: World, ranks: int, before: str, after: str):
    shares = shares_of(world.states[after] - world.states[before], ranks)
    found, verdict, _ = world.one(*(world.states[before] + share for share in shares))
    assert (found, verdict) == (after if after.startswith("mid") else "layer:2", "partial")


def test_a_partial_state_of_one_rank(world: World):
    shares = shares_of(world.states["boundary:3"] - world.states["mid:2"], 2)
    found, verdict, detail = world.one(world.states["mid:2"] + shares[0])
    assert (found, verdict) == ("layer:2", "partial")
    assert "mid:2" in detail


def own_share(world: World, layer: int, branch: str, rank: int, ranks: int) -> torch.Tensor:
    """What one rank adds [P, H]: the last linear layer of the branch with its part of the inputs, by hand."""
    block = world.target.layers[layer]
    linear = block.self_attn.o_proj if branch == "attention" else block.mlp.down_proj
    seen: list[torch.Tensor] = []
    handle = linear.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].detach()))
    try:
        named_states(world.target, list(world.ids))
    finally:
        handle.remove()
    columns = slice(rank * linear.in_features // ranks, (rank + 1) * linear.in_features // ranks)
    return seen[0][:, columns] @ linear.weight[:, columns].detach().T


@pytest.mark.parametrize("branch", ["attention", "mlp"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_ranks_partial_state_is_proven_by_the_target(world: World, branch: str, ranks: int):
    reference = reference_of_target(world.target, [world.ids], world.target.hidden_size)
    before, after = ("boundary:1", "mid:1") if branch == "attention" else ("mid:1", "boundary:2")
    for rank in (0, ranks - 1):
        state = (world.states[before] + own_share(world, 1, branch, rank, ranks)).bfloat16()
        found, verdict, detail = world.one(state, reference=reference)
        assert (found, verdict) == ("layer:1" if after == "boundary:2" else after, "partial")
        assert f"rank {rank} of {ranks}" in detail
    assert world.one(world.states[after].bfloat16(), reference=reference)[1] in ("right", "another state"), "the whole sum is no part"


def test_shares_are_known_of_a_target_in_bf16_too(world: World, tiny_targets):
    """Whose linear layers may be packed for the CPU, and hold no weight that can be looked at."""
    target = load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.bfloat16)
    reference = reference_of_target(target, [world.ids], target.hidden_size)
    assert len(reference.shares) == 2 * target.num_layers
    state = (world.states["mid:1"] + own_share(world, 1, "mlp", 1, 2)).bfloat16()
    found, verdict, detail = world.one(state, reference=reference)
    assert (found, verdict) == ("layer:1", "partial")
    assert "rank 1 of 2" in detail


def test_a_part_that_rounding_could_hide_is_found_with_the_target(tiny_targets):
    world = make_world(str(tiny_targets("llama")))
    world.target.layers[1].mlp.down_proj.weight.data.mul_(0.02)
    world = World(world.target, world.trace, named_states(world.target, list(world.ids)))
    state = world.states["mid:1"] + own_share(world, 1, "mlp", 0, 2)
    off = (state - world.states["boundary:2"]).norm() / state.norm()
    assert off < 0.05, "as near as 8 bits may move it"
    reference = reference_of_target(world.target, [world.ids], world.target.hidden_size)
    assert world.one(state, reference=reference)[:2] == ("layer:1", "partial")


def test_shares_of_branches_that_are_no_plain_sum_are_left_out(tiny_targets):
    for family, known in (("llama", {"attention", "mlp"}), ("deepseek_v3", {"attention", "mlp"}), ("gemma3_text", set())):
        world = make_world(str(tiny_targets(family)))
        reference = reference_of_target(world.target, [world.ids], world.target.hidden_size)
        names = reference.state_names
        found = {"attention" if names[after].startswith("mid") else "mlp" for _, after in reference.shares}
        assert found == known, family


def test_an_embedding_before_its_all_reduce(world: World):
    low = torch.tensor(world.ids) < world.target.vocab_size // 2
    parts = [world.states["boundary:0"] * mask[:, None] for mask in (low, ~low)]
    assert world.one(parts[0])[:2] == ("embed", "embedding not reduced")
    assert world.one(*parts)[:2] == ("embed", "embedding not reduced")


def test_routing_that_changed_at_ties_is_tolerated(tiny_targets):
    world = make_world(str(tiny_targets("qwen3_moe")))
    state = world.states["boundary:3"].clone()
    state[::5] += torch.randn(state[::5].shape, generator=torch.Generator().manual_seed(0)) * state.std()
    assert world.one(state)[:2] == ("layer:2", "right")


def test_routing_that_really_changed_at_ties_is_tolerated(tiny_targets):
    """A router that is a little off sends those tokens elsewhere that were near a tie; every later state of theirs changes."""
    world = make_world(str(tiny_targets("qwen3_moe")))
    gate = world.target.layers[1].mlp.gate
    weight = gate.weight.data.clone()
    try:
        gate.weight.data.add_(0.02 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        moved = named_states(world.target, list(world.ids))
    finally:
        gate.weight.data.copy_(weight)
    off = (moved["boundary:2"] - world.states["boundary:2"]).norm(dim=-1) / world.states["boundary:2"].norm(dim=-1)
    num_rerouted = int((off > 0.05).sum())
    assert 0 < num_rerouted < len(world.ids) // 4, "some tokens went to other experts"
    report = world.check(
        torch.stack([moved[name] for name in ("boundary:2", "boundary:3", "boundary:4")], 1), expected=(Tap(2), Tap(3), Tap(4))
    )
    assert report.ok, [slot.text() for slot in report.slots]


def test_other_tokens_need_a_target(world: World):
    other = tuple(reversed(world.ids))
    with pytest.raises(UserError, match="other tokens than the trace"):
        reference_of_trace(world.trace, [other])
    reference = reference_of_target(world.target, [other[:90], other[90:]], world.target.hidden_size)
    states = [named_states(world.target, list(ids))["boundary:1"][:, None] for ids in (other[:90], other[90:])]
    report = check_captures(reference, [Capture((other[:90], other[90:]), tuple(states), "server")], [Tap(1)])
    assert report.ok
    with pytest.raises(UserError, match="too few positions"):
        check_captures(reference, [Capture((other[:90],), (states[0],), "server")], [Tap(1)])


def test_a_trace_of_61_layers_is_small(tmp_path):
    names = tuple([f"boundary:{n}" for n in range(62)] + [f"mid:{n}" for n in range(61)] + ["final"])
    noise = {name: torch.rand(len(names)) for name in ("bfloat16", "float16", "fp8", "int8", "int4")}
    trace = Trace(
        token_ids=torch.arange(160),
        sketches=torch.randn(len(names), 160, 16),
        top1=torch.arange(160),
        noise=noise,
        state_names=names,
        dtype="bfloat16",
        compute_dtype="float32",
        look=Look("bfloat16", "bfloat16"),
        num_layers=61,
        hidden_size=7168,
        vocab_size=163840,
    )
    trace.save(tmp_path / "trace.safetensors")
    assert (tmp_path / "trace.safetensors").stat().st_size <= 2_000_000
