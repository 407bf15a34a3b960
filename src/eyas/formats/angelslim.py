"""AngelSlim's checkpoints: EAGLE's names, and layer ids, outputs, under a key that no server reads (angelslim 0.5.0).

Its draft layer never reads the config's `rope_theta`: it turns by 10000, unless RoPE is multimodal. So a draft that was
trained there was trained with 10000, and an engine that honours the config feeds it other angles.
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.formats.base import Format, Source
from eyas.formats.flat import ignore_theta, read_flat, read_switch, write_flat
from eyas.formats.reading import Reading
from eyas.formats.rope import DEFAULT_THETA, rope_kind
from eyas.wiring import Wiring

KINDS = ("default", "linear", "dynamic")  # of RoPE, that its code knows


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    for name in ("norm_before_residual", "norm_output"):
        read_switch(reading, source.config, name, False, "AngelSlim's code has no such switch")
    if rope_kind(reading.get("rope_parameters")) in KINDS:
        ignore_theta(reading, "AngelSlim's layer does not read rope_theta")
    else:
        reading.notes.append("AngelSlim's code has no such RoPE; it is read as the config has it")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, "Eagle3LlamaForCausalLM", "llama")
    return value | {"pad_token_id": 0, "pretraining_tp": 1}


def _warn(config: DraftConfig) -> list[str]:
    theta, kind = config.rope_parameters["rope_theta"], rope_kind(config.rope_parameters)
    if kind not in KINDS:
        return [f"AngelSlim's own code has no RoPE of kind {kind}"]
    return [] if theta == DEFAULT_THETA else [f"AngelSlim's own code would turn by {DEFAULT_THETA:g}; the draft was trained with {theta:g}"]


FORMAT = Format(
    name="angelslim",
    title="AngelSlim",
    layers=("midlayer.",),
    ids_mean="output",
    runs=frozenset(),
    read=_read,
    write=_write,
    keeps_full_maps=True,
    warn=_warn,
)
