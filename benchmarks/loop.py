"""Speed, acceptance and memory of the loop, measured side by side in one run; JSON out.

    python benchmarks/loop.py --target DIR --draft DIR [--draft DIR] --out loop.json

Speed: every contender answers the same held-out prompts greedily, one request at a time, each prompt by all contenders
in turn and in rotating order, so that a disturbance of the machine meets all of them. The contenders are transformers'
`generate` on the weights as transformers loads them, the embedded engine alone, and the engine with the first draft for
K = 1..4. Rates are medians over prompts; ratios are medians of the prompt's own ratios.

    decode rate   tokens after the first / time after the first token is known   (engine against engine)
    total rate    all tokens / all time, prefill included                        (against transformers)

Acceptance: first-token accuracy, acceptance predicted and measured, with and without answers that loop, per draft.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers

import eyas
from eyas.data.chats import read_chats
from eyas.engine.engine import Engine
from eyas.engine.pair import attach_draft
from eyas.engine.request import SamplingParams
from eyas.errors import UserError
from eyas.evaluate.answers import Answer, Prompt, greedy_answers, max_length, render_prompts, spread
from eyas.evaluate.evaluate import evaluate_answers
from eyas.evaluate.measure import transformers_greedy
from eyas.evaluate.report import peak_rss_gib, to_json
from eyas.evaluate.settings import EvaluateSettings, Pair
from eyas.files import write_json
from eyas.progress import Progress, console
from eyas.targets.devices import resolve_device, resolve_dtype
from eyas.targets.loading import load_target
from eyas.targets.target import Target

HELD_OUT = Path(str(resources.files("eyas.data").joinpath("prompts/heldout.jsonl")))
PLAIN, TRANSFORMERS = "plain", "transformers"

# What the shipped draft is held to, loops left out: (figure, least value).
GOALS = (
    ("first_token_accuracy", 0.45),
    ("acceptance_length_measured", 1.6),
    ("best_speculative_over_plain", 1.25),
    ("plain_over_transformers", 1.0),
)


@dataclass(frozen=True)
class Timed:
    """One answer of one contender."""

    tokens: tuple[int, ...]
    prefill_seconds: float | None
    total_seconds: float

    @property
    def total_rate(self) -> float:
        return len(self.tokens) / self.total_seconds

    @property
    def decode_rate(self) -> float | None:
        """None where there was nothing to decode, or where the prefill cannot be told from the rest."""
        if self.prefill_seconds is None or len(self.tokens) < 2:
            return None
        return (len(self.tokens) - 1) / (self.total_seconds - self.prefill_seconds)


Contender = Callable[[Prompt], Timed]


def by_transformers(target: Target, max_new_tokens: int, prompt: Prompt) -> Timed:
    start = time.perf_counter()
    tokens = transformers_greedy(target, prompt.token_ids, max_new_tokens)
    return Timed(tuple(tokens), None, time.perf_counter() - start)


def by_engine(engine: Engine, max_new_tokens: int, prompt: Prompt) -> Timed:
    start = time.perf_counter()
    [output] = engine.generate([prompt.token_ids], SamplingParams(max_new_tokens=max_new_tokens))
    return Timed(output.tokens, output.prefill_seconds, time.perf_counter() - start)


def race(contenders: dict[str, Contender], prompts: list[Prompt]) -> dict[str, list[Timed]]:
    """Every prompt by every contender; who begins rotates from prompt to prompt."""
    names = list(contenders)
    for name in names:  # the first call of each sets up kernels and memory
        contenders[name](prompts[0])
    results: dict[str, list[Timed]] = {name: [] for name in names}
    with Progress("timing", len(prompts), "prompt") as progress:
        for number, prompt in enumerate(prompts):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                results[name].append(contenders[name](prompt))
            progress.advance(1)
    return results


def speed_figures(results: dict[str, list[Timed]]) -> dict[str, Any]:
    """Medians of each contender, and its ratios to the plain engine and to transformers."""
    figures: dict[str, Any] = {}
    for name, runs in results.items():
        same = [mine.tokens == plain.tokens for mine, plain in zip(runs, results[PLAIN], strict=True)]
        figures[name] = {
            "decode_tokens_per_second": median([run.decode_rate for run in runs]),
            "total_tokens_per_second": median([run.total_rate for run in runs]),
            "decode_over_plain": ratio(runs, results[PLAIN], "decode_rate"),
            "total_over_transformers": ratio(runs, results[TRANSFORMERS], "total_rate"),
            "tokens": sum(len(run.tokens) for run in runs),
            "answers_equal_to_plain": sum(same) / len(same),
        }
    return figures


def ratio(mine: list[Timed], theirs: list[Timed], rate: str) -> float | None:
    pairs = [(getattr(left, rate), getattr(right, rate)) for left, right in zip(mine, theirs, strict=True)]
    return median([left / right for left, right in pairs if left is not None and right is not None])


def median(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def measure_speed(options: argparse.Namespace, pair: Pair, prompts: list[Prompt]) -> dict[str, Any]:
    target = pair.target
    ordinary = load_target(options.target, device=target.device, dtype=target.dtype, fast=False)
    room, limit = max_length(prompts, options.max_new_tokens), options.max_new_tokens
    with ExitStack() as stack:
        plain = stack.enter_context(Engine(target, max_length=room))
        contenders: dict[str, Contender] = {
            TRANSFORMERS: partial(by_transformers, ordinary, limit),
            PLAIN: partial(by_engine, plain, limit),
        }
        for k in range(1, options.max_k + 1):
            engine = Engine(target, pair.draft, pair.taps, num_draft_tokens=k, max_length=room)
            contenders[f"speculative_k{k}"] = partial(by_engine, stack.enter_context(engine), limit)
        return speed_figures(race(contenders, prompts))


def measure_acceptance(pair: Pair, answers: list[Answer], settings: EvaluateSettings) -> dict[str, Any]:
    return to_json(evaluate_answers(pair, answers, settings, pair.taps), lossless=None)


def judge(speed: dict[str, Any], draft: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals with what was got."""
    without_loops = draft["loops"]["without_loops"]
    by_k = [figures["decode_over_plain"] for name, figures in speed.items() if name.startswith("speculative")]
    got = {
        "first_token_accuracy": without_loops["first_token_accuracy"],
        "acceptance_length_measured": without_loops["acceptance_length_measured"],
        "best_speculative_over_plain": max((value for value in by_k if value is not None), default=None),
        "plain_over_transformers": speed[PLAIN]["total_over_transformers"],
    }
    return [{"figure": name, "wanted": wanted, "got": got[name], "met": (got[name] or 0.0) >= wanted} for name, wanted in GOALS]


def attached(target: Target, folder: Path) -> Pair:
    serving = attach_draft(target, folder)
    assert serving.draft is not None
    return Pair(serving.target, serving.draft, serving.taps)


def environment(target: Target) -> dict[str, Any]:
    return {
        "eyas": eyas.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": str(target.device) if target.device.type == "cpu" else torch.cuda.get_device_name(target.device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    target = load_target(options.target, device=resolve_device(options.device), dtype=resolve_dtype(options.dtype))
    pairs = [attached(target, folder) for folder in options.draft]
    names = [folder.resolve().name for folder in options.draft]
    chats = list(read_chats(options.chats))
    prompts, _ = render_prompts(target, chats, options.max_new_tokens)
    result: dict[str, Any] = {
        "environment": environment(target),
        "settings": {
            **{name: value for name, value in vars(options).items() if name != "out"},
            "target": target.name,
            "draft": names,
            "chats": options.chats.name,
        },
    }
    result["speed"] = measure_speed(options, pairs[0], spread(prompts, options.speed_prompts))
    result["peak_rss_gib_decoding"] = peak_rss_gib()
    console.print(f"{len(prompts)} held-out prompts: the target's own answers")
    answers = greedy_answers(target, prompts, options.max_new_tokens, options.batch)
    settings = EvaluateSettings(num_draft_tokens=options.k, max_new_tokens=options.max_new_tokens, batch=options.batch, speed_prompts=1)
    result["drafts"] = [{"name": name, **measure_acceptance(pair, answers, settings)} for name, pair in zip(names, pairs, strict=True)]
    result["peak_rss_gib"] = peak_rss_gib()
    result["goals"] = judge(result["speed"], result["drafts"][0])
    return result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target")
    parser.add_argument(
        "--draft", required=True, action="append", type=Path, help="folder of a draft; the first one is timed and held to the goals"
    )
    parser.add_argument("--chats", type=Path, default=HELD_OUT, help="held-out chats (default: the committed set)")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--k", type=int, default=3, help="draft tokens a round for the acceptance figures")
    parser.add_argument("--max-k", type=int, default=4, help="speed is measured for 1 to this many draft tokens")
    parser.add_argument("--speed-prompts", type=int, default=20, help="prompts that are timed, spread over the domains")
    parser.add_argument("--batch", type=int, default=16, help="answers decoded at once for the acceptance figures")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        result = run(options)
        if options.out is not None:
            write_json(options.out, result)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
