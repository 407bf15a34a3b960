"""NeMo Automodel's checkpoints: all keys but head and maps below `model.`, flags in the config, layer ids nowhere.

Its Llama-style heads read `fc_norm`, `norm_output` and `num_aux_hidden_states`; its MLA heads do not multiply scores by
YaRN's mscale (nemo-automodel 0.7.0, `components/speculative/eagle`).
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.formats.base import Format, Source, architectures_of
from eyas.formats.flat import read_flat, read_switch, write_flat
from eyas.formats.reading import Reading
from eyas.wiring import Wiring

LLAMA, MLA, REFUSED = "LlamaEagle3DraftModel", "DeepseekV3Eagle3DraftModel", "KimiK3Eagle3DraftModel"


def _read(source: Source) -> Reading:
    if REFUSED in architectures_of(source.config):
        raise UserError(f"{source.where}: an MLA head without RoPE and with an output gate cannot be carried", got=REFUSED)
    reading = read_flat(source, applies_mscale=False)
    read_switch(reading, source.config, "norm_output", False, "Automodel's default")
    read_switch(reading, source.config, "norm_before_residual", False, "Automodel's code has no such switch")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, MLA if config.mla else LLAMA, "deepseek_v3" if config.mla else "llama")
    value |= {"num_aux_hidden_states": config.num_taps, "fc_norm": config.fc_norm, "norm_output": config.norm_output}
    return value | {"pad_token_id": 0}


FORMAT = Format(
    name="automodel",
    title="NeMo Automodel",
    root="model.",
    layers=("layers.0.",),
    ids_mean=None,
    runs=frozenset({"mla", "fc_norm", "norm_output", "own width", "taps", "attention_bias", "mlp_bias"}),
    read=_read,
    write=_write,
)
