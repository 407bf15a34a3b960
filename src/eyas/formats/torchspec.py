"""TorchSpec's checkpoints: EAGLE's names, or `layers.0.` for vLLM; Llama-style and MLA heads (lightseekorg/TorchSpec).

Layer ids mean outputs. Its converter adds one to them when it writes `layers.0.` keys for a `kimi_k2` draft, and only
then: those mean what enters a layer.
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.formats.base import Format, Source
from eyas.formats.flat import read_flat, read_switch, write_flat
from eyas.formats.ids import Meaning
from eyas.formats.reading import Reading
from eyas.formats.rope import rope_kind
from eyas.formats.specforge import LLAMA, MLA
from eyas.wiring import Wiring

_SILENT_THETA = (
    "TorchSpec's MLA layer, as read, gives its scaled RoPE no theta, so it may have been trained with 10000 whatever the config "
    "says; eyas wiring infer tells"
)


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    for name in ("norm_before_residual", "norm_output"):
        read_switch(reading, source.config, name, False, "TorchSpec's code has no such switch")
    rope = reading.get("rope_parameters")
    if reading.get("mla.kv_lora_rank") is not None and rope_kind(rope) != "default" and rope["rope_theta"] != 10000:
        reading.notes.append(_SILENT_THETA)
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, MLA if config.mla else LLAMA, "deepseek_v3" if config.mla else "llama")
    return value | {"pad_token_id": 0}


def _meaning_here(source: Source) -> tuple[Meaning, str] | None:
    if source.layer_prefix == "layers.0." and source.config.get("model_type") == "kimi_k2":
        return "boundary", "TorchSpec adds one to the ids of kimi_k2 drafts that it writes for vLLM"
    return None


FORMAT = Format(
    name="torchspec",
    title="TorchSpec",
    layers=("midlayer.", "layers.0."),
    ids_mean="output",
    runs=frozenset({"mla", "own width"}),
    read=_read,
    write=_write,
    meaning_here=_meaning_here,
)
