"""What engines are known to feed, row by row, and what a plan says about it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from eyas.engines.catalog import parse_engine
from eyas.engines.draft_facts import DraftFacts
from eyas.engines.plan import Plan, plan
from eyas.engines.resolve import DEFAULT, resolve
from eyas.engines.target_facts import TargetFacts
from eyas.errors import UserError
from eyas.taps import Tap, format_taps, parse_taps
from eyas.wiring import Wiring

KIMI = TargetFacts("KimiK25ForConditionalGeneration", 61, 7168, 163840)
LLAMA = TargetFacts("LlamaForCausalLM", 30, 576, 49152)
QWEN = TargetFacts("Qwen3ForCausalLM", 36, 2560, 151936)
GPT_OSS = TargetFacts("GptOssForCausalLM", 24, 2880, 201088)
PLAIN: dict[str, Any] = {
    "eyas_draft_format": 1,
    "num_taps": 3,
    "hidden_size": 576,
    "target_hidden_size": 576,
    "vocab_size": 49152,
    "draft_vocab_size": 8192,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_before_residual": False,
    "norm_output": False,
}
MLA = {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "q_lora_rank": 8, "rope_interleaved": True}


def fed(engine: str, target: TargetFacts, config: dict[str, Any], runner: str | None = None) -> str:
    found = resolve(parse_engine(engine), target, config, runner)
    return found.problem or format_taps(found.taps)


def planned(engine: str, target: TargetFacts, taps: str, draft: dict[str, Any] | None = None) -> Plan:
    wiring = Wiring(taps=parse_taps(taps), embedding_source="target")
    return plan(wiring, parse_engine(engine), target, DraftFacts(draft) if draft else None)


def top(*ids: int) -> dict[str, Any]:
    return {"eagle_aux_hidden_state_layer_ids": list(ids)}


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


# -- what each engine reads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm==0.33.0", "vllm==0.18.0"])
def test_vllm_reads_an_id_as_a_boundary_sorted_and_without_repeats(engine: str) -> None:
    assert fed(engine, LLAMA, top(27, 2, 15)) == "layer:1,layer:14,layer:26"
    assert "repeated ones are dropped" in fed(engine, LLAMA, top(2, 2, 15))


def test_vllm_reaches_the_embedding_and_the_last_boundary_on_models_with_the_mixin() -> None:
    assert fed("vllm==0.33.0", LLAMA, top(0, 15, 30)) == "embed,layer:14,layer:29"
    assert "residual is None" in fed("vllm==0.17.1", LLAMA, top(0, 15, 29))
    assert "one state too few" in fed("vllm==0.17.1", LLAMA, top(2, 15, 30))


@pytest.mark.parametrize("engine", ["vllm==0.33.0", "vllm==0.20.0", "sglang==0.5.9", "sglang==0.5.23"])
def test_without_ids_the_default_is_boundaries_2_half_and_n_minus_3(engine: str) -> None:
    found = resolve(parse_engine(engine), LLAMA, {})
    assert (format_taps(found.taps), found.source) == ("layer:1,layer:14,layer:26", DEFAULT)


def test_the_default_of_a_small_target_repeats_itself() -> None:
    assert "repeated ones are dropped" in fed("vllm==0.33.0", TargetFacts("LlamaForCausalLM", 5, 8, 9), {})


def test_vllms_runners_read_different_nested_keys() -> None:
    assert fed("vllm==0.33.0", LLAMA, nested(0, 3, 5), "V1") == "embed,layer:2,layer:4"
    assert fed("vllm==0.33.0", LLAMA, nested(0, 3, 5), "V2") == "layer:1,layer:14,layer:26", "the default, without a word"
    assert fed("vllm==0.33.0", LLAMA, {"eagle_config": {"layer_ids": [0, 3, 5]}}, "V2") == "embed,layer:2,layer:4"
    assert "runners do not agree" in fed("vllm==0.33.0", LLAMA, nested(0, 3, 5))
    assert fed("vllm==0.21.0", LLAMA, nested(0, 3, 5)) == "layer:1,layer:14,layer:26", "until 0.22 the top level only"
    assert fed("vllm==0.33.0", LLAMA, {**top(1, 2, 3), **nested(7, 8, 9)}) == "layer:0,layer:1,layer:2", "the top level wins"


def test_sglang_reads_the_nested_key_only() -> None:
    assert fed("sglang==0.5.23", LLAMA, top(5, 6, 7)) == "layer:1,layer:14,layer:26"
    assert fed("sglang==0.5.23", LLAMA, nested(5, 6, 7)) == "layer:5,layer:6,layer:7"


def test_sglang_reads_an_id_as_the_output_of_a_layer() -> None:
    assert fed("sglang==0.5.9", QWEN, nested(1, 17, 32)) == "layer:1,layer:17,layer:32"
    assert fed("sglang==0.5.9", QWEN, nested(-1, 17, 32)) == "embed,layer:17,layer:32"
    assert "one state too few" in fed("sglang==0.5.23", QWEN, nested(1, 17, 35))


def test_sglangs_llama_gives_the_embedding_since_0_5_22_only() -> None:
    assert "residual is None" in fed("sglang==0.5.21", LLAMA, nested(-1, 5, 7))
    assert fed("sglang==0.5.22", LLAMA, nested(-1, 5, 7)) == "embed,layer:5,layer:7"


def test_sglangs_deepseek_changed_the_meaning_of_an_id_at_0_5_13() -> None:
    assert fed("sglang==0.5.12.post1", KIMI, nested(2, 30, 57)) == "layer:2,layer:30,layer:57"
    assert fed("sglang==0.5.13", KIMI, nested(2, 30, 57)) == "layer:1,layer:29,layer:56"
    assert fed("sglang==0.5.14", KIMI, nested(1, 29, 57)) == "layer:1,layer:29,layer:57", "a first id of 1 shifts them all"


def test_sglangs_gpt_oss_looks_at_the_largest_id() -> None:
    assert fed("sglang==0.5.23", GPT_OSS, nested(2, 12, 24)) == "layer:1,layer:11,layer:23", "literal, as the largest is N"
    assert fed("sglang==0.5.23", GPT_OSS, nested(2, 12, 21)) == "layer:2,layer:12,layer:21"
    assert "boundaries [3, 13, 25]" in fed("sglang==0.5.16", GPT_OSS, nested(2, 12, 24))


def test_odd_ids_are_refused() -> None:
    with pytest.raises(UserError, match="whole numbers"):
        resolve(parse_engine("vllm==0.33.0"), LLAMA, {"eagle_aux_hidden_state_layer_ids": ["2", 3]})


# -- the story the project starts from ---------------------------------------------------------------------------


def test_kimi_on_sglang_0_5_12_cannot_be_fed_the_embedding() -> None:
    found = planned("sglang==0.5.12", KIMI, "embed,layer:2,layer:30")
    assert not found.reachable
    assert "tap embed" in found.notes[0]
    assert "residual is None" in found.notes[0]
    assert any("sglang >=0.5.14,<0.5.20" in note for note in found.notes), "where it can be had is said"


def test_kimi_on_sglang_0_5_14_reads_boundaries() -> None:
    found = planned("sglang==0.5.14", KIMI, "embed,layer:2,layer:30")
    assert found.reachable
    assert found.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 3, 31]
    assert found.permutation == (0, 1, 2)
    assert any("context parallelism" in note for note in found.notes)


def test_kimi_on_vllm_cannot_be_fed_the_embedding() -> None:
    found = planned("vllm==0.33.0", KIMI, "embed,layer:2,layer:30")
    assert not found.reachable
    assert any("deepseek_v2.py" in note for note in found.notes)


def test_kimi_without_the_embedding_on_each() -> None:
    ids = {name: planned(name, KIMI, "layer:2,layer:30,layer:57").config for name in ("vllm==0.33.0", "sglang==0.5.12", "sglang==0.5.14")}
    assert ids["vllm==0.33.0"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 58]
    assert ids["sglang==0.5.12"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 30, 57]
    assert ids["sglang==0.5.14"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 58]


def test_a_leading_1_is_not_put_first_where_it_would_shift_all() -> None:
    found = planned("sglang==0.5.14", KIMI, "layer:0,layer:30,layer:57")
    assert found.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [31, 58, 1]
    assert found.permutation == (0, 1, 2)
    assert not planned("sglang==0.5.14", KIMI, "layer:0").reachable, "alone it can only be first"


def test_the_last_layer_is_out_of_reach_on_sglang_but_for_some() -> None:
    assert "one state too few" in planned("sglang==0.5.23", KIMI, "layer:2,layer:30,layer:60").notes[0]
    assert planned("vllm==0.33.0", KIMI, "layer:2,layer:30,layer:60").reachable
    assert not planned("vllm==0.24.0", KIMI, "layer:2,layer:30,layer:60").reachable
    assert planned("sglang==0.5.23", GPT_OSS, "layer:2,layer:11,layer:23").reachable


# -- order, repeats, the final state ------------------------------------------------------------------------------


def test_an_unsorted_wiring_is_permuted() -> None:
    found = planned("vllm==0.33.0", LLAMA, "layer:26,embed,layer:14")
    assert found.reachable
    assert found.permutation == (1, 2, 0)
    assert format_taps(found.taps) == "embed,layer:14,layer:26"
    assert found.moves_slots
    assert any("[1, 2, 0]" in note for note in found.notes)


def test_repeated_taps_and_the_final_state_are_out_of_reach() -> None:
    twice = plan(Wiring(taps=(Tap(3), Tap(3), Tap(9))), parse_engine("vllm==0.33.0"), LLAMA)
    assert not twice.reachable
    assert "read twice" in twice.notes[0]
    assert "after the final norm" in planned("vllm==0.33.0", LLAMA, "layer:2,final").notes[0]


# -- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "changes", "reason"),
    [
        ("sglang==0.5.23", {"norm_before_residual": True}, "never read"),
        ("vllm==0.33.0", {"norm_before_residual": True}, None),
        ("vllm==0.21.0", {"fc_norm": True}, "leaves the norm out"),
        ("vllm==0.22.0", {"fc_norm": True}, None),
        ("vllm==0.17.0", {"norm_before_fc": True}, "leaves the norm out"),
        ("vllm==0.18.0", {"norm_before_fc": True}, None),
        ("sglang==0.5.16", {"norm_before_fc": True}, "leaves the norm out"),
        ("sglang==0.5.17", {"norm_before_fc": True}, None),
        ("sglang==0.5.11", {"norm_output": True}, "leaves the norm out"),
        ("sglang==0.5.12", {"norm_output": True}, None),
        ("vllm==0.33.0", {"norm_before_fc": True, "mla": MLA}, "no input_norm"),
        ("vllm==0.22.1", {"fc_norm": True, "mla": MLA}, "not applied"),
        ("vllm==0.33.0", {"fc_norm": True, "norm_output": True, "norm_before_residual": True, "mla": MLA}, None),
        ("vllm==0.27.0", {"mla": MLA}, "rope_scaling alone"),
        ("vllm==0.33.0", {"mla": {**MLA, "rope_interleaved": False}}, "neighbouring columns"),
        ("sglang==0.5.23", {"mla": {**MLA, "rope_interleaved": False}}, None),
        ("sglang==0.5.23", {"mla": {**MLA, "q_lora_rank": None}}, "requires q_lora_rank"),
        ("sglang==0.5.11", {"mla": MLA}, "no mla head"),
        ("vllm==0.33.0", {"qk_norm": True}, None),
        ("vllm==0.23.0", {"qk_norm": True}, "no qwen3 head"),
        ("sglang==0.5.23", {"own_embedding": True}, "in place of its own"),
        ("vllm==0.33.0", {"own_embedding": True}, None),
        ("sglang==0.5.23", {"own_embedding": True, "hidden_size": 288}, None),
        ("sglang==0.5.23", {"attention_bias": True}, "without biases"),
        ("vllm==0.33.0", {"hidden_act": "gelu"}, "another activation"),
        ("vllm==0.33.0", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "not known to be"),
    ],
)
def test_a_switch_that_the_engine_ignores_makes_it_unreachable(engine: str, changes: dict[str, Any], reason: str | None) -> None:
    found = planned(engine, LLAMA, "layer:1,layer:14,layer:26", {**PLAIN, **changes})
    assert found.reachable == (reason is None), found.notes
    assert reason is None or reason in found.notes[0]


def test_other_numbers_of_taps_need_an_engine_that_counts_them() -> None:
    two = {**PLAIN, "num_taps": 2}
    assert planned("vllm==0.22.0", LLAMA, "layer:1,layer:14", two).config["num_aux_hidden_states"] == 2
    assert "exactly three" in planned("vllm==0.21.0", LLAMA, "layer:1,layer:14", two).notes[0]
    alone = {**PLAIN, "num_taps": 1}
    assert "fc is left out" in planned("sglang==0.5.23", LLAMA, "layer:14", alone).notes[0]
    assert planned("vllm==0.33.0", LLAMA, "layer:14", alone).reachable


def test_a_scaled_embedding_is_not_shared_with_its_scale() -> None:
    gemma = TargetFacts("Gemma3ForCausalLM", 26, 576, 49152, scales_embedding=True)
    assert any("without the scale" in note for note in planned("sglang==0.5.23", gemma, "layer:1,layer:5,layer:9", PLAIN).notes)


def test_without_a_drafts_config_the_head_is_said_not_to_be_judged() -> None:
    assert any("was not judged" in note for note in planned("vllm==0.33.0", LLAMA, "layer:1,layer:2,layer:3").notes)


# -- versions, targets and flags ------------------------------------------------------------------------------------


def test_an_unread_newer_version_is_judged_as_the_newest_and_said_so() -> None:
    found = planned("vllm==0.99.0", LLAMA, "layer:1,layer:14,layer:26")
    assert found.reachable
    assert "judged as 0.33.0" in found.notes[0]
    assert not any("judged as" in note for note in planned("vllm==0.33.0rc1", LLAMA, "layer:1,layer:14,layer:26").notes)


@pytest.mark.parametrize("text", ["vllm==0.15.9", "sglang==0.5.8"])
def test_an_older_version_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="older than any version"):
        parse_engine(text)


@pytest.mark.parametrize("text", ["vllm", "vllm>=0.3", "tgi==1.0", "vllm==", "vllm==new"])
def test_an_engine_needs_a_known_name_and_a_version(text: str) -> None:
    with pytest.raises(UserError):
        parse_engine(text)


def test_an_architecture_without_a_row_is_refused() -> None:
    with pytest.raises(UserError, match="not known to Eyas"):
        planned("vllm==0.33.0", TargetFacts("OddForCausalLM", 9, 8, 7), "layer:1")


def test_a_wiring_for_another_target_is_refused() -> None:
    wiring = Wiring(taps=parse_taps("layer:1"), num_target_layers=12)
    with pytest.raises(UserError, match="another target"):
        plan(wiring, parse_engine("vllm==0.33.0"), LLAMA)
    with pytest.raises(UserError, match="beyond the last layer"):
        planned("vllm==0.33.0", LLAMA, "layer:40")


def test_targets_are_read_from_their_config_alone() -> None:
    nested_config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61, "hidden_size": 7168}}
    nested_config["text_config"]["vocab_size"] = 163840
    assert TargetFacts.of(nested_config, "config.json") == KIMI
    for broken in ({}, {"architectures": ["LlamaForCausalLM"]}, {"architectures": [3]}, {**nested_config, "text_config": []}):
        with pytest.raises(UserError):
            TargetFacts.of(broken, "config.json")


def test_flags_count_draft_tokens_as_the_engine_does() -> None:
    wiring = Wiring(taps=parse_taps("layer:1,layer:14,layer:26"), ttt_steps=5)
    assert plan(wiring, parse_engine("vllm==0.33.0"), LLAMA).flags == (
        "--speculative-config",
        '{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 5}',
    )
    flags = plan(wiring, parse_engine("sglang==0.5.23"), LLAMA).flags
    assert flags[flags.index("--speculative-num-steps") + 1] == "5"
    assert flags[flags.index("--speculative-num-draft-tokens") + 1] == "6"
    assert flags[flags.index("--speculative-eagle-topk") + 1] == "1"


def test_fused_all_reduce_is_switched_off_where_it_would_leave_shares() -> None:
    flag = "--enforce-disable-flashinfer-allreduce-fusion"
    assert flag in planned("sglang==0.5.12", KIMI, "layer:2,layer:30,layer:57").flags
    assert flag not in planned("sglang==0.5.14", KIMI, "layer:2,layer:30,layer:57").flags


def test_judging_needs_no_torch() -> None:
    code = "import sys, eyas.engines.plan; sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kimi_that_transformers_saved_is_the_published_one() -> None:
    text = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840}
    assert TargetFacts.of({"architectures": ["Kimi_K25ForConditionalGeneration"], "text_config": text}, "config.json") == KIMI
