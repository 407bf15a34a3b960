"""What a training run was asked to do; stored with every checkpoint and compared on resume."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from eyas.errors import UserError

MAX_TTT_STEPS = 64  # each step keeps its own keys and values of every row
# Far beyond any real run; a slip of the keyboard is worth an error before anything is worked out.
_LARGEST = {
    "steps": 10_000_000,
    "ttt_steps": MAX_TTT_STEPS,
    "tokens_per_batch": 1 << 24,
    "checkpoint_every": 10_000_000,
    "hidden_size": 1 << 17,
}
_MOST_MINUTES = 100_000  # ten weeks


@dataclass(frozen=True)
class TrainSettings:
    """Exactly one of `steps` and `minutes` is given; `minutes` is turned into steps after a timed warm-up.

    `head` and `hidden_size` are those of `DraftConfig.from_target`. `decay` weights the loss of TTT step k by decay^k.
    `dtype` is the arithmetic; parameters and optimizer are fp32.
    """

    steps: int | None = None
    minutes: float | None = None
    ttt_steps: int = 3
    tokens_per_batch: int = 2048
    learning_rate: float = 4e-4
    warmup_steps: int = 20
    final_rate: float = 0.02
    decay: float = 0.8
    grad_clip: float = 1.0
    seed: int = 0
    dtype: str = "bfloat16"
    draft_vocab_size: int | None = None
    head: str = "llama"
    hidden_size: int | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    checkpoint_every: int = 200

    def check(self) -> None:
        """Raises UserError for values that cannot train."""
        if (self.steps is None) == (self.minutes is None):
            raise UserError("give either --steps or --minutes", got=f"steps {self.steps}, minutes {self.minutes}")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= largest:
                raise UserError(f"--{name.replace('_', '-')} is out of range", got=value, allowed=f"1 to {largest:,}")
        if self.minutes is not None and not 0 < self.minutes <= _MOST_MINUTES:
            raise UserError("--minutes is out of range", got=self.minutes, allowed=f"more than 0, at most {_MOST_MINUTES:,}")
        for name, value in (("--learning-rate", self.learning_rate), ("grad_clip", self.grad_clip)):
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"{name} is out of range", got=value, allowed="a positive, finite number")
        if not -(2**63) <= self.seed < 2**63:
            raise UserError("--seed is out of range", got=self.seed, allowed="-2^63 to 2^63 - 1")
        if not 0 < self.decay <= 1:
            raise UserError("decay is out of range", got=self.decay, allowed="more than 0, at most 1")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def rate_at(self, step: int, total: int) -> float:
        """Learning rate: linear warm-up, then a cosine down to `final_rate` of the peak at the last step."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
