"""What a made target must show before figures on it mean something.

It must know its language, or a draft's accuracy says nothing. Its neighbouring states must differ, or a wrong tap is as
good as the right one. And a state taken two layers too early must not give the final answer already, or a teacher from
the wrong layer is no fault.

Shapes: B chats, T positions, H hidden size, N layers, M positions of answers in all chats together.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from eyas.targets.target import Target
from eyas.targets.teach import Chats, encode_chats

MIN_TOP1, MIN_STEP, MAX_LATE_AGREEMENT = 0.60, 0.03, 0.90
_BATCH = 16


@dataclass(frozen=True)
class Gates:
    """Measured over the answers of held-out chats.

    `held_out_top1`: the share of their tokens that the target's argmax foresees. `smallest_step`: the relative L2
    difference between a boundary and the next, median over positions, where it is smallest; `smallest_step_at` is that
    boundary. `late_agreement`: how often `late_tap` through final norm and head prefers the target's own token.
    """

    held_out_top1: float
    smallest_step: float
    smallest_step_at: int
    late_tap: str
    late_agreement: float
    num_positions: int

    @property
    def passed(self) -> bool:
        return not self.failures()

    def failures(self) -> list[str]:
        return [f"{what}: {measured} (wanted: {wanted})" for what, measured, wanted, holds in self._rows() if not holds]

    def table(self) -> str:
        """Rows of a Markdown table: gate, measured, wanted."""
        return "\n".join(f"| {what} | {measured} | {wanted} |" for what, measured, wanted, _ in self._rows())

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _rows(self) -> list[tuple[str, str, str, bool]]:
        return [
            (
                f"top-1 on {self.num_positions} answer tokens of held-out chats",
                f"{self.held_out_top1:.1%}",
                f"at least {MIN_TOP1:.0%}",
                self.held_out_top1 >= MIN_TOP1,
            ),
            (
                f"smallest relative step between neighbouring boundaries ({self.smallest_step_at} to {self.smallest_step_at + 1})",
                f"{self.smallest_step:.1%}",
                f"at least {MIN_STEP:.0%}",
                self.smallest_step >= MIN_STEP,
            ),
            (
                f"{self.late_tap} through norm and lm_head agrees with the true top-1",
                f"{self.late_agreement:.1%}",
                f"at most {MAX_LATE_AGREEMENT:.0%}",
                self.late_agreement <= MAX_LATE_AGREEMENT,
            ),
        ]


@torch.no_grad()
def measure_gates(target: Target, chats: Chats) -> Gates:
    """Run the chats, the last message of each an answer, and look at every boundary. The late tap is the output of layer N - 3."""
    late = target.num_layers - 2
    right, agrees, steps = [], [], []
    for ids_BT, answer_BT in _batches(target.tokenizer, chats):
        boundaries, final_BTH = _boundaries(target, ids_BT)
        top1_BT = target.head(final_BTH).argmax(-1)
        late_BT = target.head(target.norm(boundaries[late])).argmax(-1)
        predicts_BT = answer_BT[:, 1:]  # position p is judged by token p + 1
        right.append((top1_BT[:, :-1] == ids_BT[:, 1:])[predicts_BT])
        agrees.append((late_BT == top1_BT)[:, :-1][predicts_BT])
        steps.append(torch.stack([_step(*pair)[:, :-1][predicts_BT] for pair in itertools.pairwise(boundaries)]))
    step_N = torch.cat(steps, dim=1).median(dim=1).values
    right_M = torch.cat(right).float()
    return Gates(
        held_out_top1=float(right_M.mean()),
        smallest_step=float(step_N.min()),
        smallest_step_at=int(step_N.argmin()),
        late_tap=f"layer:{late - 1}",
        late_agreement=float(torch.cat(agrees).float().mean()),
        num_positions=len(right_M),
    )


def _step(before_BTH: torch.Tensor, after_BTH: torch.Tensor) -> torch.Tensor:
    return (after_BTH - before_BTH).norm(dim=-1) / before_BTH.norm(dim=-1)


def _boundaries(target: Target, ids_BT: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """All N + 1 boundaries and the state after the norm. transformers reports the latter in the last boundary's place."""
    last: list[torch.Tensor] = []
    handle = target.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))
    try:
        output = target.backbone(input_ids=ids_BT, output_hidden_states=True, use_cache=False)
    finally:
        handle.remove()
    return [*output.hidden_states[: target.num_layers], last[0]], output.last_hidden_state


def _batches(tokenizer: Any, chats: Chats) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids [B, T], and which of them are answers, their end-of-turn token included."""
    for start in range(0, len(chats), _BATCH):
        batch = chats[start : start + _BATCH]
        ids_BT, real_BT = encode_chats(tokenizer, batch)
        questions = [tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True) for chat in batch]
        first_B = torch.tensor([len(tokenizer.encode(text, add_special_tokens=False)) for text in questions])
        position_1T = torch.arange(ids_BT.shape[1])[None]
        behind_B = real_BT.sum(1) - 1  # the line break that the template puts behind the end of the turn
        yield ids_BT, (position_1T >= first_B[:, None]) & (position_1T < behind_B[:, None])
