"""How often `eyas wiring infer` is right: drafts with random wirings, trained shortly on tiny targets; JSON out.

    python benchmarks/infer.py --out infer.json [--drafts 100] [--targets 4]

Each draft gets three random states in random order and random norm switches, and is trained for a moment on the target's
own kind of text. What its config says of the switches that no weight shows is then drawn anew. What must come out is settled
without `infer`, on other text and with the true switches: if the true wiring beats every other one on at least 2,000 rows (by
the test that `infer` uses), infer must name it; if not, it must say "undecided".

    right       named, or undecided where it must be
    undecided   undecided although the true wiring beats all others
    unproven    named rightly although other text does not prove it
    wrong       another wiring named
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from eyas.capture.corpus import read_corpus
from eyas.capture.job import CaptureSettings
from eyas.capture.runner import capture_to_dump
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.store import Dump
from eyas.data.vocab import build_vocab_map
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.warmstart import warm_start
from eyas.evaluate.infer.evidence import MIN_ROWS, Evidence, gather_evidence
from eyas.evaluate.infer.hypotheses import Other
from eyas.evaluate.infer.infer import InferSettings, infer_from
from eyas.evaluate.infer.measure import Hypothesis, beats, measure, variant
from eyas.evaluate.infer.project import FastScore
from eyas.files import read_json, write_json
from eyas.taps import Tap
from eyas.targets.families import LogitRule
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.targets.tiny import make_tiny
from eyas.targets.tiny_text import tiny_chats
from eyas.train.batches import Batch, BatchOrder, load_batch
from eyas.train.loss import TeacherHead, ttt_loss

FAMILIES = ("llama", "qwen3", "qwen3_moe", "granite")
NUM_TAPS = 3
ROWS, SEARCH_ROWS = 6000, 192
TRAIN_CHATS, JUDGE_CHATS = 240, 390
EPOCHS, BATCH_TOKENS = 3, 1024  # cut into batches in as many ways
RIVALS = 8  # the wirings that other text ranks next to the true one are measured exactly
GUESSED = ("norm_before_residual", "norm_output")  # weights do not show them
SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")


@dataclass(frozen=True)
class World:
    """One tiny target: batches with every state to train on; what infer goes by, and other texts to settle the truth on."""

    target: Target
    token_counts: torch.Tensor
    batches: list[Batch]
    shown: Evidence
    judge: Evidence


def make_world(family: str, seed: int, folder: Path) -> World:
    make_tiny(family, folder / family, trained=True, seed=seed)
    target = load_target(str(folder / family), device=torch.device("cpu"), dtype=torch.float32)
    taps = (*(Tap(boundary) for boundary in range(target.num_layers + 1)), Tap(None))
    for part, count, chats_seed in (("train", TRAIN_CHATS, 11), ("infer", JUDGE_CHATS, 12), ("judge", JUDGE_CHATS, 13)):
        chats = folder / f"{part}.jsonl"
        chats.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in tiny_chats(count, seed=chats_seed)))
        prepare(str(folder / family), [chats], folder / part, PrepareSettings(validation=0.0))
    capture_to_dump(target, read_corpus(folder / "train", str(folder / family)), CaptureSettings(taps=taps), folder / "dump")
    texts = {part: read_corpus(folder / part, str(folder / family)).texts for part in ("infer", "judge")}
    evidence = {part: gather_evidence(target, found, ROWS, SEARCH_ROWS) for part, found in texts.items()}
    dump = Dump.open(folder / "dump")
    order = BatchOrder(dump.training, dump.lengths(), BATCH_TOKENS, seed)
    batches = [load_batch(dump, order.at(number), target.device) for number in range(EPOCHS * order.batches_per_epoch)]
    return World(target, dump.token_counts(), batches, evidence["infer"], evidence["judge"])


def train_draft(world: World, taps: tuple[Tap, ...], switches: dict[str, Any], steps: int, seed: int) -> Eagle3Draft:
    """A draft that reads `taps`: warm-started, but with an fc in which every slot counts from the start."""
    target = world.target
    vocab = build_vocab_map(world.token_counts, min(256, target.vocab_size), target.stop_ids)
    torch.manual_seed(seed)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=len(taps), draft_vocab_size=len(vocab.d2t), **switches))
    draft.set_vocab_map(vocab.d2t, vocab.t2d)
    draft.use_target(target)
    warm_start(draft, target)
    torch.nn.init.normal_(draft.fc.weight, std=draft.fc.in_features**-0.5)
    rule = LogitRule.of(target.config)
    head = TeacherHead(target.head_rows(vocab.target_ids), rule.scale, rule.softcap, torch.float32)
    shuffled = random.Random(seed).choices(world.batches, k=steps)
    places = [world.judge.taps.index(tap) for tap in taps]
    optimizer = torch.optim.AdamW(draft.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.1)
    for batch in shuffled:
        every = batch.states_BTS.unflatten(-1, (-1, target.hidden_size))
        batch = dataclasses.replace(batch, states_BTS=every[:, :, places].flatten(2))
        loss, _ = ttt_loss(draft, head, batch, 2, 0.8)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    return draft.eval().requires_grad_(False)


def is_proven(world: World, draft: Eagle3Draft, taps: tuple[Tap, ...]) -> bool:
    """Does the true wiring beat every other one on other text than infer's?"""
    evidence, names = world.judge, world.judge.taps
    score = FastScore(world.target, draft, evidence.search)
    ranked = sorted(permutations(range(len(names)), len(taps)), key=score)
    rivals = [rival for rival in (tuple(names[state] for state in point) for point in ranked) if rival != taps]
    batches = (*evidence.first, *evidence.rest)
    truth = measure(draft, evidence, Hypothesis(taps), batches)
    return evidence.num_rows >= MIN_ROWS and all(
        beats(truth, measure(draft, evidence, Hypothesis(rival), batches)) for rival in rivals[:RIVALS]
    )


def run_draft(world: World, rng: random.Random, steps: int, seed: int) -> dict[str, Any]:
    taps = tuple(rng.sample(world.judge.taps, NUM_TAPS))
    switches = {name: rng.random() < 0.3 for name in SWITCHES}
    started = time.perf_counter()
    draft = train_draft(world, taps, switches, steps, seed)
    declared = variant(draft, **{name: rng.random() < 0.5 for name in GUESSED})
    trained = time.perf_counter()
    proven = is_proven(world, draft, taps)
    report = infer_from(world.target, declared, world.shown, InferSettings(num_rows=ROWS, search_rows=SEARCH_ROWS))
    found = report.best.taps == taps
    if report.decided:
        verdict = "wrong" if not found else "right" if proven else "unproven"
    else:
        verdict = "undecided" if proven else "right"
    return {
        "verdict": verdict,
        "target": world.target.name,
        "true": [str(tap) for tap in taps],
        "found": [str(tap) for tap in report.best.taps],
        "decided": report.decided,
        "proven": proven,
        "accuracy": report.best.accuracy,
        "margin": report.margin,
        "rows": report.num_rows,
        "switches": switches,
        "guessed": {item.name: judge_switch(item, switches[item.name]) for item in report.others if item.name in GUESSED},
        "train_seconds": trained - started,
        "infer_seconds": report.search_seconds,
    }


def judge_switch(found: Other, true: bool) -> str:
    """undecided: nothing can be told, and what the config says stands."""
    return "right" if found.best == true else "wrong" if found.decided else "undecided"


def summary(results: list[dict[str, Any]], settings: dict[str, Any], cpu_seconds: float) -> dict[str, Any]:
    return {
        "counts": {verdict: sum(item["verdict"] == verdict for item in results) for verdict in ("right", "undecided", "unproven", "wrong")},
        "proven": sum(item["proven"] for item in results),
        "guessed": {name: dict(Counter(item["guessed"][name] for item in results)) for name in GUESSED},
        "drafts": len(results),
        "settings": settings,
        "cpu_seconds": cpu_seconds,
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON; a run that was stopped goes on where it stopped")
    parser.add_argument("--drafts", type=int, default=100)
    parser.add_argument("--targets", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    settings = {"targets": arguments.targets, "steps": arguments.steps, "seed": arguments.seed}
    earlier = read_json(arguments.out, "the earlier results") if arguments.out.exists() else summary([], settings, 0.0)
    if earlier["settings"] != settings:
        raise SystemExit(f"{arguments.out} was made with other settings: {earlier['settings']}")
    results = earlier["results"]
    with tempfile.TemporaryDirectory() as folder:
        worlds = []
        for number in range(arguments.targets):
            place = Path(folder) / str(number)
            place.mkdir()
            worlds.append(make_world(FAMILIES[number % len(FAMILIES)], number, place))
        for number in range(len(results), arguments.drafts):
            rng = random.Random(f"{arguments.seed}/{number}")
            results.append(run_draft(worlds[number % len(worlds)], rng, arguments.steps, number))
            write_json(arguments.out, summary(results, settings, earlier["cpu_seconds"] + time.process_time()))
            print(json.dumps(results[-1]), flush=True)
    print(json.dumps({key: part for key, part in read_json(arguments.out, "the results").items() if key != "results"}))


if __name__ == "__main__":
    main()
