"""Model-Optimizer's checkpoints: `layers.0.` without a root, `d2t` but no `t2d`, no embedding (nvidia-modelopt 0.47.0).

Layer ids mean outputs and lie in `eagle_config`. Its own check of an export knows no key for norms before fc and none
for an embedding; engines read both all the same.
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.formats.base import Format, Source
from eyas.formats.flat import read_flat, read_switch, write_flat
from eyas.formats.ids import eagle_config_of
from eyas.formats.reading import Reading
from eyas.formats.specforge import LLAMA, MLA
from eyas.wiring import Wiring

_WANTED = {"use_aux_hidden_state": True, "use_last_layernorm": True, "use_mtp_layernorm": False}


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    nested = eagle_config_of(source.config, source.where)
    for name, wanted in _WANTED.items():
        if nested.get(name) not in (None, wanted):
            raise UserError(
                f"{source.where}: eagle_config says that this is no EAGLE-3 draft", got=f"{name} = {nested[name]!r}", allowed=wanted
            )
    for name in ("norm_before_residual", "norm_output"):
        read_switch(reading, source.config, name, False, "Model-Optimizer's code has no such switch")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, MLA if config.mla else LLAMA, "kimi_k2" if config.mla else "llama")
    return value | {"eagle_config": {**_WANTED, "use_input_layernorm_in_first_layer": True, "next_layer_regular": True}}


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
