"""`wiring infer`: the search finds the lowest point, its shortcut equals the draft, and the taps of a trained draft come out."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eyas.capture.plan import Text
from eyas.data.store import Dump
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.evaluate.infer.evidence import gather_evidence
from eyas.evaluate.infer.infer import InferReport, InferSettings, _rank, infer_wiring
from eyas.evaluate.infer.measure import Hits, Hypothesis, beats, measure, p_value, variant
from eyas.evaluate.infer.project import FastScore
from eyas.evaluate.infer.search import EMPTY, Point, neighbours, search
from eyas.taps import Tap, parse_taps
from eyas.targets.loading import load_target
from eyas.targets.target import Target


class Landscape:
    """A score with a valley around `truth`, slots that matter unequally, and bumps."""

    def __init__(self, truth: Point, bumps: float, seed: int) -> None:
        self.truth, self.bumps, self.seen = truth, bumps, 0
        self._rng = random.Random(seed)
        self._memory: dict[Point, float] = {}

    def __call__(self, point: Point) -> float:
        if point not in self._memory:
            self.seen += 1
            weights = [1.0, 0.5, 2.0, 0.7][: len(point)]
            away = [5.0 if state == EMPTY else min(5.0, abs(state - true)) for state, true in zip(point, self.truth, strict=True)]
            bump = 0.0 if point == self.truth else self.bumps * self._rng.random()
            self._memory[point] = sum(w * a for w, a in zip(weights, away, strict=True)) + bump
        return self._memory[point]


@pytest.mark.parametrize("seed", range(8))
def test_the_search_finds_the_lowest_point_of_31_boundaries(seed: int):
    truth = tuple(random.Random(f"truth {seed}").sample(range(32), 3))
    landscape = Landscape(truth, bumps=0.4, seed=seed)
    assert search(32, 3, landscape) == truth
    assert landscape.seen < 1500


def test_neighbours_are_what_is_easily_mistaken():
    found = neighbours((0, 3, 4), 6)
    assert {(1, 3, 4), (0, 2, 4), (3, 0, 4), (1, 4, 5)} <= set(found)
    assert all(len(set(point)) == 3 and max(point) < 6 and min(point) >= 0 for point in found)
    assert (0, 4, 4) not in found


def test_p_value_is_the_binomial_tail():
    def hits(text: str) -> torch.Tensor:
        return torch.tensor([sign == "1" for sign in text])

    assert p_value(hits("1110"), hits("0000")) == pytest.approx(1 / 8)
    assert p_value(hits("1100"), hits("0011")) == pytest.approx(11 / 16)
    assert p_value(hits("1010"), hits("1010")) == 1.0
    assert p_value(torch.ones(3000, dtype=torch.bool), torch.zeros(3000, dtype=torch.bool)) < 1e-100


def test_beating_takes_right_rows_and_where_these_are_few_probabilities():
    generator = torch.Generator().manual_seed(0)
    first, none = torch.arange(3000) % 2 == 0, torch.zeros(0, dtype=torch.bool)
    few, many = first.clone(), first.clone()
    few[1:13:2] = True  # six more: p = 1/64
    many[1:41:2] = True
    log_prob = -torch.rand(3000, generator=generator)
    surer = log_prob + 0.1 * torch.rand(3000, generator=generator)
    base = Hits(first, none, log_prob)
    assert beats(Hits(many, none, log_prob), base)
    assert beats(Hits(few, none, surer), base)
    assert not beats(Hits(few, none, log_prob), base)
    assert not beats(Hits(first, none, surer), base), "surer, but not right more often"
    assert not beats(base, Hits(few, none, surer))


def test_among_equals_the_surer_one_is_named_first_and_nothing_is_decided_by_that():
    none, generator = torch.zeros(0, dtype=torch.bool), torch.Generator().manual_seed(0)
    first = torch.rand(3000, generator=generator) < 0.5
    luckier, worse = first.clone(), first.clone()
    luckier[(~first).nonzero().flatten()[:3]] = True  # three rows more: chance
    worse[first.nonzero().flatten()[:200]] = False
    log_prob = -torch.rand(3000, generator=generator)
    hits = {(0, 1): Hits(luckier, none, log_prob - 0.1), (0, 2): Hits(first, none, log_prob), (0, 3): Hits(worse, none, log_prob + 0.5)}
    evidence = SimpleNamespace(taps=tuple(map(Tap, range(4))), num_rows=3000)
    candidates, decided, reason = _rank(evidence, hits)
    assert [candidate.taps[1] for candidate in candidates] == [Tap(2), Tap(1), Tap(3)]
    assert not decided
    assert "1 other choices" in reason


@pytest.mark.parametrize(("rows_lost", "rival", "decided"), [(24, 3, False), (24, 2, True), (40, 3, True)])
def test_last_layer_for_final_takes_a_visible_difference(rows_lost: int, rival: int, decided: bool):
    """States 3 and 4 of 5 are the last layer's output and `final`; 24 of 3000 rows are significant, but less than a point."""
    none, first = torch.zeros(0, dtype=torch.bool), torch.arange(3000) % 2 == 0
    worse = first.clone()
    worse[: 2 * rows_lost : 2] = False
    hits = {(0, 4): Hits(first, none, torch.zeros(3000)), (0, rival): Hits(worse, none, torch.zeros(3000))}
    evidence = SimpleNamespace(taps=(*map(Tap, range(4)), Tap(None)), num_rows=3000)
    candidates, found, _ = _rank(evidence, hits)
    assert candidates[0].taps == (Tap(0), Tap(None))
    assert found == decided


@pytest.fixture(scope="module")
def target(tiny_targets) -> Target:
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)


def texts(target: Target, count: int = 3, length: int = 24) -> list[Text]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, target.vocab_size, (length + number,), generator=generator).tolist() for number in range(count)]
    return [Text(f"text {number}", tuple(row), tuple(place > 3 for place in range(len(row)))) for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    "switches",
    [{}, {"fc_norm": True}, {"norm_before_fc": True}, {"fc_norm": True, "norm_before_fc": True}, {"fc_bias": True}],
    ids=lambda switches: "+".join(switches) or "plain",
)
def test_the_sum_of_projections_is_what_the_draft_fuses(target: Target, switches: dict[str, bool]):
    torch.manual_seed(0)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=3, draft_vocab_size=target.vocab_size, **switches))
    draft.set_vocab_map(torch.zeros(target.vocab_size, dtype=torch.long), torch.ones(target.vocab_size, dtype=torch.bool))
    draft.use_target(target)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.3, 2.0)
    evidence = gather_evidence(target, texts(target), 30, 30)
    score = FastScore(target, draft, evidence.search)
    for point in ((0, 1, 2), (3, 0, 5)):
        states = torch.cat([evidence.search.states[state] for state in point], dim=-1)
        with torch.no_grad():
            assert torch.allclose(score._hidden(point), draft.fuse(states), rtol=1e-3, atol=2e-3)
    assert score((0, 1, 2)) != score((2, 1, 0))


def test_rows_and_labels_are_those_of_training(target: Target):
    evidence = gather_evidence(target, texts(target), 30, 10)
    batch = evidence.first[0]
    assert evidence.num_rows == sum(text.num_scored_rows for text in texts(target)[:2])
    assert batch.row_BR[0, 0] == 3
    with torch.no_grad():
        logits = target.model(input_ids=batch.token_BT[:1]).logits[0]
    row = int(batch.row_BR[0, 5])
    assert int(batch.label_BR[0, 5]) == int(logits[row + 1].argmax())
    assert int(batch.next_label_BR[0, 5]) == int(logits[row + 2].argmax())


def train(target: Target, dump: Dump, steps: int) -> Eagle3Draft:
    from eyas.train.loop import Trainer
    from eyas.train.settings import TrainSettings

    settings = TrainSettings(steps=steps, ttt_steps=2, learning_rate=4e-3, dtype="float32", tokens_per_batch=1024, norm_output=True)
    trainer = Trainer(target, dump, settings, dump.path.with_name("unused-draft"))
    torch.manual_seed(1)
    torch.nn.init.normal_(trainer.draft.fc.weight, std=trainer.draft.fc.in_features**-0.5)  # every slot matters from the start
    for step in range(steps):
        trainer._step({"step": step, "tokens_passed": 0, "seconds": 0.0}, steps)
    return trainer.draft.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trained(tiny_dump: Path, tiny_targets) -> tuple[Target, Eagle3Draft, list[Text]]:
    target = load_target(str(tiny_targets("llama", trained=True)), device=torch.device("cpu"), dtype=torch.float32)
    dump = Dump.open(tiny_dump)
    samples = [dump.sample(index) for index in range(dump.num_samples)]
    found = [Text(str(n), tuple(s.token_ids.tolist()), tuple(s.loss_mask.tolist())) for n, s in enumerate(samples)]
    return target, train(target, dump, 60), found


@pytest.fixture(scope="module")
def report(trained: tuple[Target, Eagle3Draft, list[Text]]) -> InferReport:
    return infer_wiring(*trained, InferSettings(num_rows=3000, search_rows=256))


def test_the_taps_of_a_trained_draft_come_out(report: InferReport):
    assert report.best.taps == parse_taps("embed,layer:1,layer:2"), report.to_json()
    assert report.decided, report.reason
    assert report.num_rows >= 2000
    assert report.best.accuracy == max(candidate.accuracy for candidate in report.candidates)
    assert report.margin > 0
    value = report.to_json()
    assert value["best"]["taps"] == ["embed", "layer:1", "layer:2"]
    assert value["candidates"][0]["taps"] == value["best"]["taps"]
    assert value["decided"] is True


def test_the_switches_of_a_trained_draft_come_out(report: InferReport, trained):
    found = {item.name: item for item in report.others}
    assert found["shift"].best == 0
    assert (found["norm_before_residual"].best, found["norm_output"].best) == (False, True)
    target, draft, rows = trained
    wrong = variant(draft, norm_before_residual=True, norm_output=False)
    again = infer_wiring(target, wrong, rows, InferSettings(num_rows=2200, search_rows=256))
    others = {item.name: item for item in again.others}
    assert (others["norm_before_residual"].declared, others["norm_before_residual"].best) == (True, False)
    assert (others["norm_output"].declared, others["norm_output"].best) == (False, True)
    assert again.best.taps == parse_taps("embed,layer:1,layer:2"), "searched again with the draft as it was trained"
    assert again.best.accuracy == pytest.approx(report.best.accuracy, abs=0.02)


def test_too_few_rows_and_equal_states_decide_nothing(trained):
    target, draft, rows = trained
    few = infer_wiring(target, draft, rows[:5], InferSettings(num_rows=50, search_rows=50))
    assert not few.decided
    assert "at least 2000" in few.reason
    blind = variant(draft)
    size = draft.config.target_hidden_size
    blind.fc.weight.data[:, :size] = 0  # nothing can tell what stood in slot 0
    undecided = infer_wiring(target, blind, rows, InferSettings(num_rows=2200, search_rows=128))
    assert not undecided.decided
    assert undecided.best.taps[1:] == (Tap(2), Tap(3))


def test_every_choice_is_reachable(trained):
    """The search over a small space agrees with trying everything."""
    target, draft, rows = trained
    evidence = gather_evidence(target, rows, 300, 200)
    score = FastScore(target, draft, evidence.search)
    found = search(len(evidence.taps), 3, score)
    assert score(found) == min(score(point) for point in permutations(range(len(evidence.taps)), 3))
    assert len(measure(draft, evidence, Hypothesis((Tap(0), Tap(1), Tap(None))), evidence.first).first) == evidence.num_rows
