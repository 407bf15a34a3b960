"""SpecForge's checkpoints: EAGLE's names, `fc_norm`, and layer ids that mean outputs (specforge 0.2.0, `modeling/draft`).

Its `norm_output` is another thing than that of everybody else: with it, which is its default, lm_head reads a normed
state; without it, one that was never normed. What is fed back is not normed in either case.
"""

from __future__ import annotations

from typing import Any

from eyas.draft.config import DraftConfig
from eyas.errors import UserError
from eyas.formats.base import Format, Source
from eyas.formats.flat import read_flat, read_switch, write_flat
from eyas.formats.reading import Reading
from eyas.wiring import Wiring

LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"


def _read(source: Source) -> Reading:
    reading = read_flat(source)
    read_switch(reading, source.config, "norm_before_residual", False, "SpecForge's code has no such switch")
    normed = source.config.get("norm_output", True)
    if normed is not True:
        raise UserError(
            f"{source.where}: lm_head would read a state that was never normed",
            got=f"norm_output = {normed!r}, as SpecForge 0.2 reads it",
            allowed="true, or no such key",
            remedy="no engine serves such a draft; if another project wrote it, name that one with --from",
        )
    said = "says true, which" if "norm_output" in source.config else "has no such key, which"
    reading.assume("norm_output", False, f"the config {said} for SpecForge 0.2 is a norm before lm_head, not one that is fed back")
    return reading


def _write(config: DraftConfig, wiring: Wiring, dtype: str) -> dict[str, Any]:
    value = write_flat(config, dtype, MLA if config.mla else LLAMA, "deepseek_v3" if config.mla else "llama")
    value.pop("norm_output", None)  # the word means one thing to SpecForge and another to the engines
    return value | {"fc_norm": config.fc_norm, "pad_token_id": 0, "pretraining_tp": 1}


FORMAT = Format(
    name="specforge",
    title="SpecForge",
    layers=("midlayer.",),
    ids_mean="output",
    runs=frozenset({"fc_norm", "own width"}),
    read=_read,
    write=_write,
    keeps_full_maps=True,
)
