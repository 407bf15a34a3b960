"""The draft's unroll against decoding itself, and the checkpoint's refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.draft.cache import DraftCache
from eyas.draft.checkpoint import draft_wiring_fields, load_draft, read_draft, read_wiring, save_draft
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.draft.warmstart import warm_start
from eyas.errors import UserError, WiringError
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.wiring import Wiring

CPU = torch.device("cpu")
MLA = MlaConfig(kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, q_lora_rank=16, softmax_factor=1.3)
MLA_HEADS = {"num_key_value_heads": 4, "head_dim": 12}
SWITCHES: list[dict[str, Any]] = [
    {},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"qk_norm": True, "attention_bias": True, "mlp_bias": True, "fc_bias": True},
    {"hidden_size": 16, "own_embedding": True},
    {"own_embedding": True, "draft_vocab_size": 50, "lm_head_source": "embedding"},
    {"mla": MLA, **MLA_HEADS},
    {"mla": dataclasses.replace(MLA, q_lora_rank=None, rope_interleaved=False), **MLA_HEADS, "norm_output": True, "fc_norm": True},
]


def make_draft(**switches: Any) -> Eagle3Draft:
    torch.manual_seed(0)
    config = DraftConfig(32, 32, 3, 64, 4, 2, 8, 50, 20, {"rope_type": "default", "rope_theta": 1e4}, 128)
    config = dataclasses.replace(config, **switches)
    config.check("the test")
    draft = Eagle3Draft(config)
    for parameter in draft.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    if not config.own_embedding:
        draft.use_embedding(torch.nn.Embedding(50, 32).requires_grad_(False))
    return draft


def text(length: int = 12, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 50, (batch, length), generator=generator), torch.randn(batch, length, 96, generator=generator)


@torch.no_grad()
def decode(draft: Eagle3Draft, token_T: torch.Tensor, states_TS: torch.Tensor, row: int, num_steps: int) -> list[torch.Tensor]:
    """What the engine does at one row: prefill rows 0..row from target states, then feed the output back."""
    cache = DraftCache(draft, 1, 64, CPU)
    position, mask = cache.begin(row + 1)
    output = draft(token_T[None, 1 : row + 2], draft.fuse(states_TS[None, : row + 1]), position, cache, mask)[:, -1:]
    cache.advance(row + 1)
    outputs = [output[0, 0]]
    for step in range(1, num_steps):
        position, mask = cache.begin(1)
        output = draft(token_T[None, row + 1 + step : row + 2 + step], output, position, cache, mask)
        cache.advance(1)
        outputs.append(output[0, 0])
    return outputs


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "+".join(switches) or "plain")
def test_unroll_equals_decoding_step_by_step(switches: dict[str, Any]) -> None:
    draft = make_draft(**switches)
    token_BT, states_BTS = text()
    outputs = unroll(draft, token_BT, states_BTS, 4)
    for sample in range(2):
        for row in range(12 - 5):
            for step, expected in enumerate(decode(draft, token_BT[sample], states_BTS[sample], row, 4)):
                torch.testing.assert_close(outputs[step][sample, row], expected, atol=2e-5, rtol=1e-4)


def test_unroll_of_chosen_rows_equals_the_same_rows_of_all() -> None:
    draft = make_draft()
    token_BT, states_BTS = text()
    row_BR = torch.tensor([[3, 4, 7], [0, 5, 6]])
    for some, every in zip(unroll(draft, token_BT, states_BTS, 3, row_BR), unroll(draft, token_BT, states_BTS, 3), strict=True):
        torch.testing.assert_close(some, every.gather(1, row_BR[:, :, None].expand(-1, -1, 32)))


def test_visible_set_equals_the_definition_by_brute_force() -> None:
    """Which inputs move output (row, step): states of rows <= row, tokens 1..row+1 and the row's own row+2..row+1+step."""
    draft = make_draft()
    token_BT, states_BTS = text(batch=1)
    before = unroll(draft, token_BT, states_BTS, 3)
    for position in range(12):
        changed_states = states_BTS.clone()
        changed_states[0, position] += 1.0
        changed_tokens = token_BT.clone()
        changed_tokens[0, position] = (changed_tokens[0, position] + 1) % 50
        by_state = unroll(draft, token_BT, changed_states, 3)
        by_token = unroll(draft, changed_tokens, states_BTS, 3)
        for step in range(3):
            for row in range(12 - 2 - step):
                moved = not torch.equal(by_state[step][0, row], before[step][0, row])
                assert moved == (position <= row), f"state {position} and row {row}, step {step}"
                moved = not torch.equal(by_token[step][0, row], before[step][0, row])
                assert moved == (1 <= position <= row + 1 + step), f"token {position} and row {row}, step {step}"


def test_rope_positions_advance_with_the_step() -> None:
    """A draft whose steps all had the row's own position would not notice this shift."""
    draft = make_draft()
    token_BT, states_BTS = text(batch=1)
    layer = draft.midlayer
    at_row = layer.rotation(torch.tensor([[5]]), states_BTS)[0]
    one_later = layer.rotation(torch.tensor([[6]]), states_BTS)[0]
    assert not torch.equal(at_row, one_later)
    positions: list[int] = []
    original = layer.rotation
    layer.rotation = lambda position, like: positions.append(int(position.flatten()[-1])) or original(position, like)  # type: ignore[method-assign,func-returns-value]
    unroll(draft, token_BT, states_BTS, 3, torch.tensor([[5]]))
    assert positions == [11, 5, 6, 7]  # keys of all rows, then the row's own steps


@pytest.fixture
def saved(tmp_path: Path, tiny_targets) -> tuple[Path, object]:
    target = load_target(str(tiny_targets("llama")), device=CPU, dtype=torch.float32)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=40))
    ids = torch.arange(0, 80, 2)
    t2d = torch.zeros(target.vocab_size, dtype=torch.bool)
    t2d[ids] = True
    draft.set_vocab_map(ids - torch.arange(40), t2d)
    draft.use_embedding(target.embed)
    wiring = Wiring(taps=parse_taps("embed,layer:1"), **draft_wiring_fields(draft))
    save_draft(tmp_path / "draft", draft, wiring, None, "card", dtype=torch.float32)
    return tmp_path / "draft", target


def test_round_trip(saved) -> None:
    folder, target = saved
    loaded = load_draft(folder, target, torch.float32)
    assert loaded.wiring.taps == parse_taps("embed,layer:1")
    assert loaded.wiring.rope_inv_freq == tuple(loaded.draft.midlayer.rope.inv_freq.tolist())
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors", "wiring.json"]
    assert not any("embed" in name for name in load_file(folder / "model.safetensors"))


def test_a_draft_of_format_1_is_still_read(saved) -> None:
    folder, target = saved
    config = json.loads((folder / "config.json").read_text())
    old = {key: value for key, value in config.items() if key not in NEW_KEYS} | {"eyas_draft_format": 1}
    (folder / "config.json").write_text(json.dumps(old))
    assert load_draft(folder, target, torch.float32).draft.config == DraftConfig.from_json(config, "now")
    (folder / "config.json").write_text(json.dumps(config | {"eyas_draft_format": 1}))
    with pytest.raises(UserError, match="unknown"):
        load_draft(folder, target, torch.float32)


NEW_KEYS = {"mla", "own_embedding", "lm_head_source", "fc_bias", "attention_bias", "mlp_bias", "qk_norm"}


def test_read_without_a_target_every_tensor_as_it_is_stored(saved) -> None:
    folder, target = saved
    draft = read_draft(folder).draft
    draft.midlayer.hidden_norm.half()
    with pytest.raises(UserError, match="not empty"):
        save_draft(folder, draft, read_wiring(folder), None, "card", dtype=None)
    folder, wiring = folder.with_name("again"), read_wiring(folder)
    save_draft(folder, draft, wiring, None, "card", dtype=None)
    again = read_draft(folder).draft
    assert {name: tensor.dtype for name, tensor in again.state_dict().items()} == {
        name: tensor.dtype for name, tensor in draft.state_dict().items()
    }
    assert again.midlayer.hidden_norm.weight.dtype == torch.float16
    assert load_draft(folder, target, torch.float32).draft.midlayer.hidden_norm.weight.dtype == torch.float32


def test_a_draft_brings_its_own_embedding(tmp_path: Path, tiny_targets) -> None:
    target = load_target(str(tiny_targets("llama")), device=CPU, dtype=torch.float32)
    config = DraftConfig.from_target(target.config, num_taps=1, draft_vocab_size=target.vocab_size)
    draft = Eagle3Draft(dataclasses.replace(config, hidden_size=48, own_embedding=True, lm_head_source="embedding"))
    wiring = Wiring(taps=parse_taps("layer:1"), **draft_wiring_fields(draft))
    assert (wiring.embedding_source, wiring.lm_head_source, wiring.d2t_kind) == ("draft", "draft", "full")
    save_draft(tmp_path / "draft", draft, wiring, None, "card", dtype=torch.float32)
    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")
    loaded = load_draft(tmp_path / "draft", target, torch.float32).draft
    ids = torch.tensor([[4, 9]])
    assert torch.equal(loaded.embed(ids), draft.embed_tokens(ids))
    assert torch.equal(loaded.head_weight, draft.embed_tokens.weight)


def test_frequencies_stay_exact_when_the_weights_are_cast() -> None:
    draft = make_draft()
    exact = draft.midlayer.rope.inv_freq.clone()
    assert not torch.equal(exact.bfloat16().float(), exact)
    assert torch.equal(draft.to(torch.bfloat16).midlayer.rope.inv_freq, exact)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"own_embedding": False, "hidden_size": 16}, "embedding of its own"),
        ({"lm_head_source": "embedding", "draft_vocab_size": 50}, "tied to an embedding"),
        ({"lm_head_source": "target"}, "whole vocabulary"),
        ({"num_key_value_heads": 3}, "divide evenly"),
        ({"head_dim": 9}, "odd"),
        ({"mla": dataclasses.asdict(MLA), "num_key_value_heads": 4}, "head_dim is not"),
        ({"mla": {**dataclasses.asdict(MLA), "kv_lora_rank": 0}}, "kv_lora_rank"),
        ({"mla": {**dataclasses.asdict(MLA), "heads": 3}}, "unknown"),
        ({"mla": 7}, "mla has the wrong type"),
        ({"lm_head_source": "nowhere"}, "lm_head_source"),
        ({"own_embedding": 1}, "own_embedding"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ],
)
def test_configs_of_no_draft_are_refused(edit: dict[str, Any], message: str) -> None:
    value = make_draft().config.to_json() | edit
    with pytest.raises(UserError, match=message):
        DraftConfig.from_json(value, "config.json")


def damage(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("lm_head.weight"), "missing lm_head.weight"),
        (lambda t: t.update(spare=torch.zeros(1)), "unread spare"),
        (lambda t: t.update({"fc.weight": torch.zeros(3, 3)}), "another shape"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "NaN"),
        (lambda t: t["d2t"].copy_(torch.arange(0, 80, 2)), "t2d marks other"),
        (lambda t: t["d2t"].copy_(-torch.arange(40)), "not strictly increasing"),
        (lambda t: t["d2t"].zero_(), "t2d marks other"),
        (lambda t: t["t2d"].zero_(), "t2d marks other"),
        (lambda t: t["d2t"].add_(10**6), "out of the target's vocabulary"),
        (lambda t: t.update(d2t=t["d2t"].float()), "another type of numbers"),
        (lambda t: t.update({"norm.weight": t["norm.weight"].to(torch.float8_e4m3fn)}), "another type of numbers"),
    ],
)
def test_broken_weights_are_refused(saved, change, message: str) -> None:
    folder, target = saved
    damage(folder, change)
    with pytest.raises(UserError, match=message):
        load_draft(folder, target, torch.float32)


def test_truncated_weights_and_foreign_config_are_refused(saved) -> None:
    folder, target = saved
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="missing or damaged"):
        load_draft(folder, target, torch.float32)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "surprise": 1}))
    with pytest.raises(UserError, match="surprise"):
        load_draft(folder, target, torch.float32)
    (folder / "config.json").write_text(json.dumps({**config, "target_hidden_size": 4096}))
    with pytest.raises(UserError, match="an embedding of its own"):
        load_draft(folder, target, torch.float32)
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 4096, "target_hidden_size": 4096}))
    with pytest.raises(UserError, match="made for another target"):
        load_draft(folder, target, torch.float32)


@pytest.mark.parametrize("fast", [True, False])
def test_warm_start_acts_like_the_last_layer(tiny_targets, fast: bool) -> None:
    """Fed the last layer's input, and with an embedding half of zero, the draft says what the target says."""
    target = load_target(str(tiny_targets("llama", trained=True)), device=CPU, dtype=torch.bfloat16 if fast else torch.float32, fast=fast)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=target.vocab_size))
    draft.set_vocab_map(torch.zeros(target.vocab_size, dtype=torch.long), torch.ones(target.vocab_size, dtype=torch.bool))
    draft.use_embedding(target.embed)
    assert warm_start(draft, target) == []
    torch.nn.init.zeros_(draft.fc.weight)
    draft.fc.weight.data[:, -target.hidden_size :] = torch.eye(target.hidden_size)
    draft.to(target.dtype)
    ids = torch.randint(4, 500, (8, 24), generator=torch.Generator().manual_seed(0))  # few rows stray by chance in bf16
    with torch.no_grad():
        output = target.model(ids, output_hidden_states=True)
        states = torch.cat([output.hidden_states[0], output.hidden_states[target.num_layers - 1]], dim=-1)
        logits = draft.logits(unroll(draft, ids, states, 1)[0])
    agreed = (logits.argmax(-1) == output.logits.argmax(-1)).float().mean()
    assert agreed > 0.9


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3_text"])
def test_warm_start_takes_norms_as_the_target_applies_them(tiny_targets, family: str) -> None:
    """Gemma stores them as differences from 1, and has a norm of the MLP's input besides one of attention's output."""
    target = load_target(str(tiny_targets(family)), device=CPU, dtype=torch.float32)
    layer = target.layers[-1]
    before_mlp = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
    sources = [target.norm, layer.input_layernorm, before_mlp]
    for place, norm in enumerate(sources):
        torch.nn.init.uniform_(norm.weight, 0.1 + place, 0.9 + place)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=2, draft_vocab_size=target.vocab_size))
    draft.set_vocab_map(torch.zeros(target.vocab_size, dtype=torch.long), torch.ones(target.vocab_size, dtype=torch.bool))
    draft.use_embedding(target.embed)
    warm_start(draft, target)
    states = torch.randn(5, target.hidden_size, generator=torch.Generator().manual_seed(0))
    for mine, source in zip([draft.norm, draft.midlayer.hidden_norm, draft.midlayer.post_attention_layernorm], sources, strict=True):
        torch.testing.assert_close(mine(states), source(states))


EDITS = {
    "switch": {"norm_before_residual": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    "heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
    "memory": {"intermediate_size": 10**9},
    "activation": {"hidden_act": "nonsense"},
    "rope": {"rope_parameters": {"rope_type": "nonsense", "rope_theta": 1e4}},
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_config_that_is_not_the_one_trained_with_is_refused(saved, edit) -> None:
    """Those that fit the weights' shapes, too: the wiring says what was trained."""
    folder, target = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | edit))
    with pytest.raises(UserError, match=r"config\.json"):
        load_draft(folder, target, torch.float32)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_a_draft_with_scaled_positions_is_read_back(saved, rope) -> None:
    folder, target = saved
    config = dataclasses.replace(load_draft(folder, target, torch.float32).draft.config, rope_parameters={"rope_theta": 1e4} | rope)
    draft = Eagle3Draft(config)
    draft.load_state_dict(load_file(folder / "model.safetensors"))
    scaled = folder.with_name("scaled")
    save_draft(scaled, draft, Wiring(taps=parse_taps("embed,layer:1"), **draft_wiring_fields(draft)), None, "card", dtype=torch.float32)
    assert load_draft(scaled, target, torch.float32).draft.config == config


def test_taps_edited_by_hand_are_refused(saved) -> None:
    """No shape tells; the weights' file knows with which wiring it was written."""
    folder, target = saved
    wiring = json.loads((folder / "wiring.json").read_text())
    (folder / "wiring.json").write_text(json.dumps(wiring | {"taps": wiring["taps"][::-1]}))
    with pytest.raises(WiringError, match="is not the wiring"):
        load_draft(folder, target, torch.float32)
