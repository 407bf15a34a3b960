"""The embedded engine, run: its text must be the target's own, whatever is in the batch and however its caches were filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, untestable
from eyas.doctor.replay.bench import Bench
from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.engine.ties import explain_difference
from eyas.evaluate.measure import common_length, transformers_greedy
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_PROMPTS, _TOKENS, _K = 6, 32, 3
_DRAWS = 384


def lossless(exam: Examination) -> Outcome:
    """One request at a time, against transformers' own greedy text."""
    bench, target, prompts = _setting(exam)
    if bench is None or target is None:
        return untestable(exam.why_no_bench)
    wrong = _differences(bench, target, prompts)
    if wrong and not _only_caches(wrong):
        text = f"in {len(wrong)} of {len(prompts)} prompts the output is not the target's: {wrong[0][1]}"
        return confirmed(Fault("lossy", "engine", (Evidence(text),), _REPORT, 0.9))
    return ruled_out(f"{len(prompts)} outputs of up to {_TOKENS} tokens are the target's own, token for token")


def caches(exam: Examination) -> Outcome:
    """Outputs that are wrong after some rounds, and right if begun again just before: only the caches differ."""
    bench, target, prompts = _setting(exam)
    if bench is None or target is None:
        return untestable(exam.why_no_bench)
    wrong = _differences(bench, target, prompts)
    if wrong and _only_caches(wrong):
        many = f"{len(wrong)} of {len(prompts)} outputs"
        text = f"{many} are wrong after some rounds, and right if begun again just before: {wrong[0][1]}"
        return confirmed(Fault("cache-variant", "engine", (Evidence(text),), _REPORT, 0.92))
    return ruled_out(f"{len(prompts)} prompts: what stands in the caches changes nothing")


def _only_caches(wrong: Sequence[tuple[int, str, bool]]) -> bool:
    """Whether beginning again helps: an engine that judges wrongly gets a few tokens right by luck, too."""
    return sum(again for _, _, again in wrong) > 0.7 * len(wrong)


def batches(exam: Examination) -> Outcome:
    bench, target, prompts = _setting(exam)
    if bench is None or target is None:
        return untestable(exam.why_no_bench)
    alone = [_run(bench, target, [prompt], 1)[0] for prompt in prompts]
    together = _run(bench, target, prompts, len(prompts))
    odd = []
    for prompt, one, other in zip(prompts, alone, together, strict=True):
        difference = explain_difference(target, list(prompt), list(other.tokens), list(one.tokens))
        if difference is not None and not difference.is_tie:
            odd.append(difference.text())
    if odd:
        text = f"{len(odd)} of {len(prompts)} requests give other tokens together than alone: {odd[0]}"
        return confirmed(Fault("batch-variant", "engine", (Evidence(text),), _REPORT, 0.9))
    return ruled_out(f"{len(prompts)} requests give the same tokens together and alone")


_REPORT = "this is a bug of the engine: report it with this evidence"


def sampling(exam: Examination) -> Outcome:
    """The second token of many draws, given the commonest first one, by chi-square against the target's own probabilities."""
    bench, target, prompts = _setting(exam)
    if bench is None or target is None:
        return untestable(exam.why_no_bench)
    prompt = prompts[0]
    with _engine(bench, target, len(prompt) + 8, 32) as engine:
        outputs = engine.generate([prompt] * _DRAWS, SamplingParams(max_new_tokens=3, temperature=1.0, seed=5))
    firsts = [output.tokens[0] for output in outputs if len(output.tokens) > 1]
    if len(firsts) < 50:
        return untestable("too few draws go on behind their first token")
    common = max(set(firsts), key=firsts.count)
    seconds = [output.tokens[1] for output in outputs if len(output.tokens) > 1 and output.tokens[0] == common]
    with torch.no_grad():
        logits = target.model(input_ids=torch.tensor([[*prompt, common]])).logits[0, -1].float()
    expected = logits.softmax(-1) * len(seconds)
    likely = (expected >= 5).nonzero().flatten().tolist()
    counts = [*(seconds.count(token) for token in likely), sum(token not in likely for token in seconds)]
    wanted = [*(float(expected[token]) for token in likely), len(seconds) - float(expected[likely].sum())]
    chi = sum((count - want) ** 2 / want for count, want in zip(counts, wanted, strict=True) if want >= 1)
    freedom = max(1, len(likely) - (wanted[-1] < 1))
    numbers = {"chi_square": chi, "degrees": freedom, "draws": len(seconds)}
    if chi > freedom + 6 * (2 * freedom) ** 0.5 + 6:
        text = (
            f"{len(seconds)} sampled tokens do not follow the target's distribution: chi-square {chi:.1f} at {freedom} degrees of freedom"
        )
        return confirmed(Fault("lossy-sampling", "engine", (Evidence(text, numbers),), _REPORT, 0.88))
    return ruled_out(
        f"{len(seconds)} sampled tokens follow the target's distribution: chi-square {chi:.1f} at {freedom} degrees", **numbers
    )


def _setting(exam: Examination) -> tuple[Bench | None, Target | None, list[tuple[int, ...]]]:
    bench, target = exam.bench, exam.loaded_target
    if bench is None or target is None:
        return None, None, []
    prompts = []
    for text in exam.texts:
        start = next((place for place, own in enumerate(text.loss_mask) if own), 0)
        prompt = tuple(text.token_ids[:start])
        if start > 2 and prompt not in prompts:
            prompts.append(prompt)
        if len(prompts) == _PROMPTS:
            break
    return (bench, target, prompts) if prompts else (None, None, [])


def _engine(bench: Bench, target: Target, length: int, batch: int) -> Engine:
    draft = bench.given.build(target)
    return Engine(target, draft, taps=bench.given.taps, max_batch=batch, max_length=length, num_draft_tokens=_K)


def _run(bench: Bench, target: Target, prompts: Sequence[Sequence[int]], batch: int, tokens: int = _TOKENS) -> list[Output]:
    with _engine(bench, target, max(map(len, prompts)) + tokens, batch) as engine:
        return engine.generate(list(prompts), SamplingParams(max_new_tokens=tokens))


def _differences(bench: Bench, target: Target, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, str, bool]]:
    """(prompt, what differs, whether it is right if begun again just before); ties are left out."""
    found = []
    for number, prompt in enumerate(prompts):
        output = list(_run(bench, target, [prompt], 1)[0].tokens)
        wanted = transformers_greedy(target, prompt, _TOKENS)
        difference = explain_difference(target, list(prompt), output, wanted)
        if difference is None or difference.is_tie:
            continue
        place = max(0, common_length(output, wanted) - 1)
        again = list(_run(bench, target, [(*prompt, *wanted[:place])], 1, 4)[0].tokens)
        rest = wanted[place : place + 4]
        found.append((number, difference.text(), place > 0 and again[: len(rest)] == rest[: len(again)]))
    return found
