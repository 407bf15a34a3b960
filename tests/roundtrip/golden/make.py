"""Writes the golden checkpoints beside it: one a project, with that project's own keys, by hand and without Eyas's code.

    python tests/roundtrip/golden/make.py

Keys and configs follow EAGLE (traineagle3/config.json), specforge 0.2.0, speculators 0.9.0, nvidia-modelopt 0.47.0,
TorchSpec (tools/convert_to_hf.py), nemo-automodel 0.7.0 and angelslim 0.5.0. Every number in the tensors is different.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

H, FFN, HEADS, KV, D, V, V_DRAFT = 8, 12, 2, 1, 4, 24, 10
NOPE, ROPE, VALUE, Q_RANK, KV_RANK = 4, 2, 6, 5, 7
IDS = torch.tensor([0, 2, 3, 5, 8, 9, 13, 17, 20, 23])
ROOT = Path(__file__).parent
LLAMA = {
    "self_attn.q_proj.weight": (HEADS * D, 2 * H),
    "self_attn.k_proj.weight": (KV * D, 2 * H),
    "self_attn.v_proj.weight": (KV * D, 2 * H),
    "self_attn.o_proj.weight": (H, HEADS * D),
}
MLA = {
    "self_attn.q_a_proj.weight": (Q_RANK, 2 * H),
    "self_attn.q_a_layernorm.weight": (Q_RANK,),
    "self_attn.q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_RANK),
    "self_attn.kv_a_proj_with_mqa.weight": (KV_RANK + ROPE, 2 * H),
    "self_attn.kv_a_layernorm.weight": (KV_RANK,),
    "self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), KV_RANK),
    "self_attn.o_proj.weight": (H, HEADS * VALUE),
}
REST = {
    "mlp.gate_proj.weight": (FFN, H),
    "mlp.up_proj.weight": (FFN, H),
    "mlp.down_proj.weight": (H, FFN),
    "hidden_norm.weight": (H,),
    "input_layernorm.weight": (H,),
    "post_attention_layernorm.weight": (H,),
}
SIZES = {
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "max_position_embeddings": 64,
}


def tensors(layer: str, attention: dict[str, tuple[int, ...]], root: str = "", **more: tuple[int, ...]) -> dict[str, torch.Tensor]:
    shapes = {root + layer + name: shape for name, shape in (attention | REST).items()}
    shapes |= {root + "fc.weight": (H, 3 * H), root + "norm.weight": (H,), "lm_head.weight": (V_DRAFT, H)}
    shapes |= {root + name.replace("__", "."): shape for name, shape in more.items()}
    made, start = {}, 1
    for name, shape in sorted(shapes.items()):
        count = int(torch.tensor(shape).prod())
        made[name] = (torch.arange(start, start + count, dtype=torch.float32) / 1024).reshape(shape)
        start += count
    return made


def maps(t2d: bool = True) -> dict[str, torch.Tensor]:
    d2t = IDS - torch.arange(V_DRAFT)
    return {"d2t": d2t} | ({"t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, IDS, True)} if t2d else {})


def write(name: str, config: dict, weights: dict[str, torch.Tensor], *, pickled: bool = False) -> None:
    folder = ROOT / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    eagle_ids = {"eagle_aux_hidden_state_layer_ids": [1, 7, 12]}
    embedding = {"embed_tokens__weight": (V, H)}
    write(
        "eagle",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES, "draft_vocab_size": V_DRAFT, "tie_word_embeddings": False},
        tensors("midlayer.", LLAMA) | maps(),
        pickled=True,
    )
    write(
        "specforge",
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **SIZES, "head_dim": D, "draft_vocab_size": V_DRAFT}
        | {"rope_theta": 1000000.0, "rope_scaling": None, "eagle_config": {**eagle_ids, "use_aux_hidden_state": True}, "fc_norm": True},
        tensors("midlayer.", LLAMA, fc_norm__0__weight=(H,), fc_norm__1__weight=(H,), fc_norm__2__weight=(H,)) | maps(),
    )
    write(
        "speculators",
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "a/target", "architectures": ["Qwen3ForCausalLM"]},
            },
            "transformer_layer_config": {
                "model_type": "qwen3",
                **SIZES,
                "head_dim": D,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                "layer_types": ["full_attention"],
            },
            "draft_vocab_size": V_DRAFT,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": [2, 8, 13],
        },
        tensors(
            "layers.0.",
            LLAMA | {"self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,)},
            input_norm__weight=(3 * H,),
            **embedding,
        )
        | maps(),
    )
    write(
        "modelopt",
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **SIZES, "head_dim": D, "draft_vocab_size": V_DRAFT}
        | {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}}
        | {"tie_word_embeddings": False, "use_cache": True, "torch_dtype": "float32"}
        | {"eagle_config": {**eagle_ids, "use_aux_hidden_state": True, "use_last_layernorm": True, "use_mtp_layernorm": False}},
        tensors("layers.0.", LLAMA) | maps(t2d=False),
    )
    config = json.loads((ROOT / "modelopt" / "config.json").read_text())
    config["rope_scaling"]["original_max_position_embeddings"] = 16
    (ROOT / "modelopt" / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    mla = {"q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
    write(
        "torchspec",
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", **SIZES, "num_key_value_heads": HEADS, **mla}
        | {"draft_vocab_size": V_DRAFT, "rope_theta": 50000.0, "rope_scaling": {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}}
        | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 8, 13], "use_aux_hidden_state": True}, "_torchspec_version": "0.1.0"},
        tensors("layers.0.", MLA, **embedding) | maps(),
    )
    write(
        "automodel",
        {"architectures": ["LlamaEagle3DraftModel"], "model_type": "llama", **SIZES, "head_dim": D, "draft_vocab_size": V_DRAFT}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "num_aux_hidden_states": 3, "norm_output": True},
        tensors("layers.0.", LLAMA, root="model.", mask_hidden=(1, 1, 3 * H), **embedding) | maps(),
    )
    write(
        "angelslim",
        {"architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", **SIZES, "head_dim": D, "draft_vocab_size": V_DRAFT}
        | {"rope_theta": 1000000.0, "rope_scaling": None, "aux_hidden_states_layer_ids": [1, 7, 12]},
        tensors("midlayer.", LLAMA, **embedding) | maps(),
    )


if __name__ == "__main__":
    main()
