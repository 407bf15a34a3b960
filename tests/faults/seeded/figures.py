"""What a server would have reported: metrics and log lines of given figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seeded.sets import Set


def saved(s: Set, name: str, text: str) -> Path:
    path = s.work / name
    path.write_text(text)
    return path


def vllm_metrics(rounds: float, proposed: float, accepted: float, positions: Sequence[float]) -> str:
    values = {"num_drafts": rounds, "num_draft_tokens": proposed, "num_accepted_tokens": accepted}
    lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {value}' for name, value in values.items()]
    start = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position='
    return "\n".join([*lines, *(f'{start}"{place}"}} {value}' for place, value in enumerate(positions))]) + "\n"


def sglang_metrics(length: float, rate: float, drafted: int) -> str:
    values = {"accept_length": length, "accept_rate": rate, "num_draft_tokens": drafted}
    return "".join(f'sglang:spec_{name}{{tp_rank="0"}} {value}\n' for name, value in values.items())


def drifting_log(first: float, last: float, lines: int = 60) -> str:
    """vLLM's lines, falling from the first length to the last one."""
    out = []
    for place in range(lines):
        length = first + (last - first) * place / (lines - 1)
        rates = ", ".join(f"{(length - 1) * share:.3f}" for share in (0.55, 0.28, 0.17))
        accepted = round(1000 * (length - 1))
        out.append(
            f"INFO 07-01 10:{place:02d}:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {length:.2f}, "
            f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
            f"Drafted: 3000 tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {accepted / 30:.1f}%"
        )
    return "\n".join(out) + "\n"
