"""Model-Optimizer's checkpoints: `layers.0.` without a root, `d2t` but no `t2d`, no embedding (nvidia-modelopt 0.47.0).

Layer ids mean outputs and lie in `eagle_config`. Its own check of an export knows no key for norms before fc and none
for an embedding; engines read both all the same.
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.formats.base import Format, Source
from eyas.formats.flat import PLAIN_HEAD, read_flat, read_switch, write_flat
from eyas.formats.reading import Reading
from eyas.formats.specforge import LLAMA, MLA
from eyas.wiring import Wiring


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    for name in ("norm_before_residual", "norm_output"):
        read_switch(reading, source.config, name, False, "Model-Optimizer's code has no such switch")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, MLA if config.mla else LLAMA, "kimi_k2" if config.mla else "llama")
    return value | {"eagle_config": {**PLAIN_HEAD, "next_layer_regular": True}}


FORMAT = Format(
    name="modelopt",
    title="Model-Optimizer",
    layers=("layers.0.",),
    ids_mean="output",
    runs=frozenset({"mla", "taps", "attention_bias", "fc_bias", "mlp_bias", "target head"}),
    read=_read,
    write=_write,
    keeps_t2d=False,
)
