"""SGLang's rows, read in the wheels of sglang 0.5.9 to 0.5.23 (every minor version). None of it was run.

Two ways to capture: at the head of a model's own loop, where the residual is still None before the first layer and a
fused all-reduce may be outstanding; or inside the layer, after its input norm has added things up.
"""

from __future__ import annotations

from eyas.engines.rows import CaptureRow, Engine, HeadRow, IdMeaning, ReaderRow

_NO_RESIDUAL = "boundary 0 is captured as hidden_states + residual, and residual is None before the first layer: the forward pass raises"
_NO_LAST = "states are captured at layer inputs only, so nothing matches N and the draft gets one state too few"
_NO_LAST_INDEX = "the layer that enters boundary N is looked up in a list of N layers: the server does not start"

_NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
READERS = (
    ReaderRow(
        ">=0.5.9,<0.5.16", "", (_NESTED,), "srt/model_executor/model_runner.py, ModelRunner: eagle_config only, any error means none"
    ),
    ReaderRow(
        ">=0.5.16",
        "",
        (_NESTED,),
        "srt/model_executor/model_runner_components/spec_aux_hidden_state.py: eagle_config only, any error means none",
    ),
)

_LLAMA = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM")
_QWEN = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
_QWEN_MOE = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM")
_DEEPSEEK = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")
_KIMI = ("KimiK25ForConditionalGeneration",)
_MODELS = "srt/models/"
_SUM = "set_eagle3_layers_to_capture adds 1; the loop appends hidden_states + residual"
_INSIDE = "set_eagle3_layers_to_capture adds 1; captured in the layer, a residual of None is taken care of"


def _row(versions: str, architectures: tuple[str, ...], file: str, *, inside: bool, fused: bool = False) -> CaptureRow:
    """A model that reads ids as outputs of layers and captures inputs of layers only."""
    return CaptureRow(
        versions,
        architectures,
        _MODELS + file,
        IdMeaning.OUTPUT,
        _INSIDE if inside else _SUM,
        no_embedding=None if inside else _NO_RESIDUAL,
        no_last=_NO_LAST,
        fused_allreduce=fused,
    )


def _deepseek(versions: str, architectures: tuple[str, ...], meaning: IdMeaning, *, inside: bool, gathers: bool = True) -> CaptureRow:
    """`gathers`: this file itself cuts a prefill for context parallelism and gathers only the hidden states again."""
    where = "in the layer, after its input norm" if inside else "at the head of the loop, as hidden_states + residual"
    how = (
        "set_eagle3_layers_to_capture: +1 always" if meaning is IdMeaning.OUTPUT else "set_eagle3_layers_to_capture: +1 only if ids[0] == 1"
    )
    return CaptureRow(
        versions,
        architectures,
        _MODELS + "deepseek_v2.py, kimi_k25.py",
        meaning,
        f"{how}; captured {where}" + ("" if gathers else "; context parallelism has moved elsewhere and was not read"),
        no_embedding=None if inside else _NO_RESIDUAL,
        no_last=_NO_LAST,
        fused_allreduce=not inside,
        cp_unsafe=gathers,
    )


CAPTURES = (
    _row(">=0.5.9,<0.5.22", _LLAMA, "llama.py", inside=False),
    _row(">=0.5.22", _LLAMA, "llama.py", inside=True),
    CaptureRow(
        ">=0.5.9",
        _QWEN,
        _MODELS + "qwen2.py, qwen3.py",
        IdMeaning.OUTPUT,
        "set_eagle3_layers_to_capture adds 1; Qwen2Model.forward takes care of a residual of None",
        no_last=_NO_LAST,
    ),
    CaptureRow(
        ">=0.5.9",
        _QWEN_MOE,
        _MODELS + "qwen2_moe.py, qwen3_moe.py, qwen3_next.py",
        IdMeaning.OUTPUT,
        "set_eagle3_layers_to_capture adds 1 and marks self.layers[i]; captured after the layer's input norm",
        no_last=_NO_LAST_INDEX,
    ),
    _row(">=0.5.9,<0.5.17", ("GptOssForCausalLM",), "gpt_oss.py", inside=False, fused=True),
    CaptureRow(
        ">=0.5.17,<0.5.21",
        ("GptOssForCausalLM",),
        _MODELS + "gpt_oss.py",
        IdMeaning.MAX_IS_N,
        "set_eagle3_layers_to_capture: literal if max(ids) == N; the end is captured too, and a residual of None is taken care of",
        fused_allreduce=True,
    ),
    CaptureRow(
        ">=0.5.21",
        ("GptOssForCausalLM",),
        _MODELS + "gpt_oss.py",
        IdMeaning.MAX_IS_N,
        "set_eagle3_layers_to_capture: literal if max(ids) == N; captured in the layer, the end too",
    ),
    _deepseek(">=0.5.9,<0.5.10", _DEEPSEEK, IdMeaning.OUTPUT, inside=False),
    _deepseek(">=0.5.10,<0.5.13", (*_DEEPSEEK, *_KIMI), IdMeaning.OUTPUT, inside=False),
    _deepseek(">=0.5.13,<0.5.14", (*_DEEPSEEK, *_KIMI), IdMeaning.FIRST_IS_ONE, inside=False),
    _deepseek(">=0.5.14,<0.5.20", (*_DEEPSEEK, *_KIMI), IdMeaning.FIRST_IS_ONE, inside=True),
    _deepseek(">=0.5.20", (*_DEEPSEEK, *_KIMI), IdMeaning.FIRST_IS_ONE, inside=True, gathers=False),
    _row(">=0.5.9,<0.5.11", ("MiniMaxM2ForCausalLM",), "minimax_m2.py", inside=False),
    _row(">=0.5.11", ("MiniMaxM2ForCausalLM",), "minimax_m2.py", inside=True),
    _row(">=0.5.9,<0.5.21", ("Glm4MoeForCausalLM",), "glm4_moe.py", inside=False, fused=True),
    _row(">=0.5.21", ("Glm4MoeForCausalLM",), "glm4_moe.py", inside=True),
    _row(">=0.5.9,<0.5.22", ("ApertusForCausalLM",), "apertus.py", inside=False),
    _row(">=0.5.22", ("ApertusForCausalLM",), "apertus.py", inside=True),
    CaptureRow(
        ">=0.5.12",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        _MODELS + "gemma3_causal.py, gemma3_mm.py",
        IdMeaning.OUTPUT,
        "set_eagle3_layers_to_capture adds 1; no residual is carried, and the end is captured after the loop",
    ),
)

_ALL_LAYERS = frozenset({"target_head"})
_REPLACED = "a draft as wide as the target gets the target's embedding in place of its own, without a comparison"
_RESIDUAL = "norm_before_residual is never read: the residual is the state before its norm"
_SKIPPED = "states as wide as the draft are taken for fused ones, and fc is left out"
_THREE = "fc is built for exactly three states"
_NOT_YET = "this version does not know the switch and leaves the norm out"
_NO_BIAS = "its tensor is dropped while loading"
_LLAMA_WHY = {
    "norm_before_residual": _RESIDUAL,
    "own_embedding": _REPLACED,
    "taps_fill_hidden": _SKIPPED,
    "attention_bias": "q, k and v are built without biases, and " + _NO_BIAS,
    "mlp_bias": _NO_BIAS,
    "fc_bias": "the switch for it also adds biases to attention that no checkpoint fills",
    "qk_norm": "there is no Qwen3-style head",
}
_MLA_WHY = {
    "norm_before_residual": _RESIDUAL,
    "own_embedding": _REPLACED,
    "taps_fill_hidden": _SKIPPED,
    "norm_before_fc": "the MLA head has no input_norm and drops the switch without a word",
    "full_query": "the head requires q_lora_rank",
    "fc_bias": "not known to be filled",
}
_MLA = frozenset({"target_head", "num_taps", "plain_mla_rope", "half_rope"})

HEADS = (
    HeadRow(
        ">=0.5.9,<0.5.12",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _ALL_LAYERS,
        "LlamaModel.__init__: fc takes 3 · target_hidden_size, no norm before it; tensors must be called midlayer.*",
        {**_LLAMA_WHY, "num_taps": _THREE, "norm_before_fc": _NOT_YET, "fc_norm": _NOT_YET, "norm_output": _NOT_YET},
    ),
    HeadRow(
        ">=0.5.12,<0.5.17",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _ALL_LAYERS | {"num_taps", "fc_norm", "norm_output"},
        "LlamaModel.__init__: fc_norm and norm_output; the nested ids give the number of states",
        {**_LLAMA_WHY, "norm_before_fc": _NOT_YET},
    ),
    HeadRow(
        ">=0.5.17",
        "llama",
        "LlamaForCausalLMEagle3",
        _MODELS + "llama_eagle3.py",
        _ALL_LAYERS | {"num_taps", "fc_norm", "norm_output", "norm_before_fc"},
        "LlamaModel.__init__: norm_before_fc too",
        _LLAMA_WHY,
    ),
    HeadRow(
        ">=0.5.12,<0.5.13",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "kimi_k25_eagle3.py",
        _MLA,
        "Eagle3MLAModel.__init__: no norm before fc",
        {**_MLA_WHY, "fc_norm": _NOT_YET, "norm_output": _NOT_YET},
    ),
    HeadRow(
        ">=0.5.13",
        "mla",
        "Eagle3DeepseekV2ForCausalLM",
        _MODELS + "kimi_k25_eagle3.py",
        _MLA | {"fc_norm", "norm_output"},
        "Eagle3MLAModel.__init__: fc_norm and norm_output",
        _MLA_WHY,
    ),
)

SGLANG = Engine("sglang", "0.5.9", "0.5.23", READERS, CAPTURES, HEADS)
