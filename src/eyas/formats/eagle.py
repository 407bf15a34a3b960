"""EAGLE's own checkpoints (SafeAILab/EAGLE): the names that Eyas keeps, and a plain Llama config.

Its code captures what enters layers 2, N // 2 and N - 3, whatever a config says, so its configs keep no ids. It knows no
switches at all; its residual is the state before the norm, and what it feeds back is not normed. Where RoPE is scaled, it
reads no theta (`eagle/model/cnets.py`).
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.formats.base import Format, Source
from eyas.formats.flat import ignore_theta, read_flat, read_switch, write_flat
from eyas.formats.reading import Reading
from eyas.formats.rope import DEFAULT_THETA, rope_kind
from eyas.wiring import Wiring

SCALED = ("linear", "dynamic")  # kinds of RoPE that its code knows beside the plain one


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    for name in ("norm_before_residual", "norm_output"):
        read_switch(reading, source.config, name, False, "EAGLE's code has no such switch")
    if rope_kind(reading.get("rope_parameters")) in SCALED:
        ignore_theta(reading, "EAGLE's layer reads no rope_theta where RoPE is scaled")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, "LlamaForCausalLM", "llama")
    if config.target_hidden_size == config.hidden_size:
        del value["target_hidden_size"]  # EAGLE's code then looks for an embedding in the draft
    return value | {"pad_token_id": 0, "pretraining_tp": 1}  # it reads both, and not every transformers gives them


def _warn(config: DraftConfig) -> list[str]:
    theta, kind = config.rope_parameters["rope_theta"], rope_kind(config.rope_parameters)
    if kind not in ("default", *SCALED):
        return [f"EAGLE's own code has no RoPE of kind {kind}"]
    if kind == "default" or theta == DEFAULT_THETA:
        return []
    return [f"EAGLE's own code would turn by {DEFAULT_THETA:g} where RoPE is scaled; the draft was trained with {theta:g}"]


FORMAT = Format(
    name="eagle",
    title="EAGLE",
    layers=("midlayer.",),
    ids_mean=None,
    runs=frozenset({"own width"}),
    read=_read,
    write=_write,
    keeps_full_maps=True,
    fixed_taps=True,
    warn=_warn,
)
