"""GPUs that can be planned with: memory and dense bf16 arithmetic from the makers' data sheets (SXM or OAM parts).

Sheets that print rates with structured sparsity are halved: no model here is sparse in that way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eyas.errors import UserError


@dataclass(frozen=True)
class Gpu:
    """`memory` in bytes (decimal, as sold); `flops` a second, dense bf16."""

    name: str
    memory: float
    flops: float


GPUS = (
    Gpu("A100-40GB", 40e9, 312e12),
    Gpu("A100-80GB", 80e9, 312e12),
    Gpu("H100", 80e9, 989e12),
    Gpu("H200", 141e9, 989e12),
    Gpu("B200", 180e9, 2250e12),
    Gpu("L4", 24e9, 121e12),
    Gpu("L40S", 48e9, 362e12),
    Gpu("MI300X", 192e9, 1307e12),
    Gpu("MI325X", 256e9, 1307e12),
)


@dataclass(frozen=True)
class Fleet:
    """So many GPUs of one kind."""

    count: int
    gpu: Gpu

    @staticmethod
    def parse(text: str) -> Fleet:
        """8xH200, or H200 for one. Raises UserError for anything else."""
        found = re.fullmatch(r"\s*(?:(\d+)\s*[x*×])?\s*([A-Za-z][\w-]*)\s*", text)
        if found is None or (found[1] is not None and not 1 <= int(found[1]) <= 100_000):
            raise UserError(
                "--gpus cannot be read", got=text, allowed="a number, x and a name: 8xH200", remedy="a mixed fleet is planned in parts"
            )
        gpu = next((gpu for gpu in GPUS if gpu.name.lower() == found[2].lower()), None)
        if gpu is None:
            raise UserError(
                "--gpus names an unknown GPU",
                got=found[2],
                allowed=", ".join(gpu.name for gpu in GPUS),
                remedy="take one with as much memory, and state the rates that you measured: --capture-rate, --train-rate",
            )
        return Fleet(int(found[1] or 1), gpu)
