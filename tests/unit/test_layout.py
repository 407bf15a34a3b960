"""What can be known of a layout without ranks: shares of positions, plans of weights, hashes, refusals. tests/parity has the ranks."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import AutoConfig

from eyas.capture.parallel import agree
from eyas.capture.parallel.agree import bit_hash, require_agreement
from eyas.capture.parallel.share import Share
from eyas.capture.rows import row_orders
from eyas.errors import UserError
from eyas.targets.families import family_of
from eyas.targets.layout import SINGLE, Layout, require_prefill_only
from eyas.targets.sharding import distributed_config, tp_plan

CPU = torch.device("cpu")


def shares(cp: int, order: str, length: int) -> list[Share]:
    return [Share.of(Layout(tp=1, cp=cp, order=order, rank=rank), length, CPU) for rank in range(cp)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("cp", "order"), list(itertools.product([2, 3, 4, 8], ["zig-zag", "round-robin"])))
@pytest.mark.parametrize("length", [1, 2, 7, 16, 33, 70])
def test_shares_are_equal_and_come_back_in_order(cp: int, order: str, length: int):
    parts = shares(cp, order, length)
    assert len({len(share.mine_S) for share in parts}) == 1, "gathering takes parts of one size"
    assert 0 <= parts[0].padded - length < 2 * cp
    gathered = torch.cat([share.mine_S for share in parts])
    assert torch.equal(gathered[parts[0].back_P], torch.arange(parts[0].padded))


@pytest.mark.parametrize("cp", [2, 4])
def test_zig_zag_ranks_see_about_as_many_keys(cp: int):
    counts = [int((share.mine_S + 1).sum()) for share in shares(cp, "zig-zag", 64 * cp)]
    assert max(counts) == min(counts), "the causal pairs of each rank"
    uneven = [int((share.mine_S + 1).sum()) for share in shares(cp, "round-robin", 64 * cp)]
    assert max(uneven) > min(uneven)


@pytest.mark.parametrize(("cp", "order"), list(itertools.product([2, 4], ["zig-zag", "round-robin"])))
@pytest.mark.parametrize("length", [150, 152, 161])
def test_the_trace_check_knows_the_orders_of_padded_shares(cp: int, order: str, length: int):
    parts = shares(cp, order, length)
    words = order.replace("-", " ") if order == "round-robin" else order

    def known(rows: torch.Tensor) -> list[str]:
        wanted = torch.where(rows < length, rows, -1)
        return [found.what for found in row_orders([length], [len(rows)]) if torch.equal(found.rows, wanted)]

    assert any(f"{order} order of {cp} ranks" in what for what in known(torch.cat([share.mine_S for share in parts])))
    for rank, share in enumerate(parts):
        assert f"only the rows of rank {rank} of {cp}, {words}" in known(share.mine_S)


def test_what_ranks_hash_changes_with_every_bit_and_with_the_order():
    state = torch.randn(9, 8, dtype=torch.bfloat16)
    assert bit_hash(state) == bit_hash(state.clone())
    other = state.clone()
    other[3, 2] = -other[3, 2]
    assert bit_hash(other) != bit_hash(state)
    assert bit_hash(state.flip(0)) != bit_hash(state)
    assert bit_hash(torch.tensor([1, 2])) != bit_hash(torch.tensor([2, 1]))


def test_the_hash_does_not_depend_on_how_much_is_looked_at_at_a_time(monkeypatch):
    state = torch.randn(50, 8)
    whole = bit_hash(state)
    monkeypatch.setattr(agree, "_CHUNK", 7)
    assert bit_hash(state) == whole


def test_ranks_that_differ_are_named(monkeypatch):
    monkeypatch.setattr(Layout, "of_all", lambda self, value: [value, value, value + 1, value])
    with pytest.raises(UserError, match="ranks hold different states") as error:
        require_agreement(Layout(tp=4), "states", [torch.ones(3)])
    assert "ranks 2 differ from rank 0" in str(error.value)
    require_agreement(SINGLE, "states", [torch.ones(3)])


def test_decoding_refuses_context_parallelism_by_name():
    require_prefill_only(Layout(tp=4), "the engine")
    with pytest.raises(UserError, match="context parallelism is for prefill, and the engine decodes"):
        require_prefill_only(Layout(cp=2), "the engine")


# -- plans -----------------------------------------------------------------------------------------------------


def plan_of(model_type: str, tp: int, **sizes: int) -> dict[str, str]:
    return tp_plan(AutoConfig.for_model(model_type, **sizes), tp)


def test_rows_add_what_thin_plans_leave_whole():
    deepseek = plan_of("deepseek_v3", 4, num_attention_heads=8, num_key_value_heads=8, q_lora_rank=16)
    assert deepseek["layers.*.self_attn.q_b_proj"] == deepseek["layers.*.self_attn.kv_b_proj"] == "colwise"
    assert deepseek["layers.*.self_attn.o_proj"] == "rowwise"
    one_go = plan_of("deepseek_v3", 4, num_attention_heads=8, num_key_value_heads=8, q_lora_rank=None)
    assert "layers.*.self_attn.q_b_proj" not in one_go and one_go["layers.*.self_attn.q_proj"] == "colwise"
    assert plan_of("gpt_oss", 2)["layers.*.self_attn.sinks"] == "colwise"
    assert plan_of("llama", 2) == {}, "transformers' own plan says all"


@pytest.mark.parametrize(("model_type", "heads", "key_heads"), [("llama", 8, 2), ("qwen3", 6, 6), ("deepseek_v3", 6, 6), ("gpt_oss", 8, 2)])
def test_heads_that_cannot_be_dealt_out_leave_attention_whole(model_type: str, heads: int, key_heads: int):
    plan = plan_of(model_type, 4, num_attention_heads=heads, num_key_value_heads=key_heads)
    assert plan and set(plan.values()) == {"replicate"}
    assert all(".self_attn" in name for name in plan)


def test_latent_attention_has_no_key_heads_to_deal_out():
    plan = plan_of("deepseek_v3", 4, num_attention_heads=8, num_key_value_heads=2)
    assert plan["layers.*.self_attn.kv_b_proj"] == "colwise"


def test_the_embedding_is_split_for_every_family_and_experts_are_dealt_out():
    shares = distributed_config(AutoConfig.for_model("qwen3_moe", num_experts=8), family_of("qwen3_moe"), Layout(tp=2, cp=2))
    assert shares is not None and shares.tp_plan["model.embed_tokens"] == "embedding_rowwise"
    assert (shares.tp_size, shares.ep_size, shares.dp_replicate_size, shares.dp_size) == (2, 2, 2, 1)
    odd = distributed_config(AutoConfig.for_model("qwen3_moe", num_experts=7), family_of("qwen3_moe"), Layout(tp=2))
    assert odd is not None and odd.ep_size == 1
    assert distributed_config(AutoConfig.for_model("llama"), family_of("llama"), Layout(cp=4)) is None


def test_a_family_without_a_plan_is_refused():
    with pytest.raises(UserError, match="no plan for tensor parallelism"):
        plan_of("gpt2", 2)
