"""Evaluation on a tiny trained target with a draft that is sometimes right: prediction equals measurement, in fp32 round
by round; wrong states cost accuracy; every difference must be explained."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eyas.capture.forward import capture_batch
from eyas.data.chats import Chat
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.draft.warmstart import warm_start
from eyas.engine.request import Output, Round
from eyas.errors import UserError
from eyas.evaluate.agreement import agree, compare_rounds
from eyas.evaluate.answers import Answer, Prompt, greedy_answers, render_prompts, spread
from eyas.evaluate.evaluate import evaluate
from eyas.evaluate.forecast import Forecast, forecast
from eyas.evaluate.measure import check_lossless, measure
from eyas.evaluate.report import to_json
from eyas.evaluate.settings import EvaluateSettings, Pair
from eyas.evaluate.uniform import uniform_accuracy
from eyas.evaluate.walk import walk
from eyas.loops import find_loop
from eyas.taps import parse_taps
from eyas.targets.loading import load_target
from eyas.targets.tiny_text import tiny_chats
from eyas.wiring import Wiring

TAPS = parse_taps("layer:0,layer:1,layer:3")
WRONG = parse_taps("embed,layer:0,layer:2")
SETTINGS = EvaluateSettings(num_draft_tokens=3, max_new_tokens=40, batch=4, speed_prompts=2)


@pytest.fixture(scope="module")
def target(tiny_targets):
    return load_target(str(tiny_targets("llama", trained=True)), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts(target):
    chats = [Chat(f"c{number}", tuple(chat[:-1]), ("even", "odd")[number % 2]) for number, chat in enumerate(tiny_chats(24, seed=77))]
    return render_prompts(target, chats, SETTINGS.max_new_tokens)[0]


@pytest.fixture(scope="module")
def draft(target):
    """Trained for a moment on the target's answers, so that all of none, some and all accepted occur."""
    torch.manual_seed(0)
    draft = Eagle3Draft(DraftConfig.from_target(target.config, num_taps=3, draft_vocab_size=target.vocab_size))
    draft.set_vocab_map(torch.zeros(target.vocab_size, dtype=torch.long), torch.ones(target.vocab_size, dtype=torch.bool))
    draft.use_embedding(target.embed)
    warm_start(draft, target)
    chats = [Chat(str(number), tuple(chat[:-1])) for number, chat in enumerate(tiny_chats(48, seed=5))]
    answers = greedy_answers(target, render_prompts(target, chats, 40)[0], 40, 48)
    captured = capture_batch(target, [answer.token_ids for answer in answers], TAPS)
    token_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(answer.token_ids) for answer in answers], batch_first=True)
    states_BTS = torch.nn.utils.rnn.pad_sequence([item.states for item in captured], batch_first=True)
    optimizer = torch.optim.Adam(draft.parameters(), lr=3e-3)
    for _ in range(60):
        outputs = unroll(draft, token_BT, states_BTS, 3)
        losses = [
            torch.nn.functional.cross_entropy(draft.logits(out[:, : -2 - k]).flatten(0, 1), token_BT[:, 2 + k :].flatten(), ignore_index=0)
            for k, out in enumerate(outputs)
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    return draft.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def wiring():
    return Wiring(taps=TAPS)


@pytest.fixture(scope="module")
def evaluation(target, draft, wiring, prompts):
    return evaluate(target, draft, wiring, prompts, SETTINGS)


def test_prediction_equals_measurement_round_by_round(evaluation):
    assert evaluation.agreement.unexplained == ()
    assert evaluation.agreement.holds is True
    assert evaluation.agreement.rounds_compared > 100
    if not evaluation.agreement.ties:
        assert evaluation.all.predicted == evaluation.all.measured
    counts = [rate for rate in evaluation.all.measured.conditional if rate is not None]
    assert all(0.05 < rate < 0.98 for rate in counts), "a draft that is always right or always wrong proves nothing"


def test_the_mean_over_all_rows_is_not_the_walk(evaluation, target, draft, prompts):
    """The reason for walking: uniform rates multiplied out give another figure."""
    total, product = 1.0, 1.0
    for rate in evaluation.all.uniform_accuracy:
        product *= rate
        total += product
    assert abs(total - evaluation.all.predicted.acceptance_length) > 0.005


def test_forecast_equals_stepping_the_draft_alone(target, draft, prompts):
    """The batch against one answer at a time without padding, and uniform accuracy against a count by hand."""
    pair = Pair(target, draft, TAPS)
    answers = greedy_answers(target, prompts[:5], 40, 5)
    batched = forecast(pair, answers, 3, 5, lambda count: None)
    alone = [forecast(pair, [answer], 3, 1, lambda count: None)[0] for answer in answers]
    hits = total = 0
    for answer, one, many in zip(answers, alone, batched, strict=True):
        for step in range(3):  # behind the answer's end nothing is meant
            kept = max(0, len(answer.tokens) - 1 - step)
            assert torch.equal(one.proposed_RK[:kept, step], many.proposed_RK[:kept, step])
        assert many.choice_R.tolist() == list(answer.tokens[1:]), "greedy text is the target's own top-1"
        for row in range(len(answer.tokens) - 2):
            hits += int(many.proposed_RK[row, 1] == answer.tokens[row + 2])
            total += 1
    assert uniform_accuracy(batched, 3)[1] == pytest.approx(hits / total)


def test_uniform_accuracy_counts_an_unknown_target_token_as_a_miss():
    known = Forecast(torch.tensor([[4], [5]]), torch.tensor([4, 5]), torch.tensor([[True], [True]]))
    unknown = Forecast(torch.tensor([[4], [5]]), torch.tensor([900, 5]), torch.tensor([[False], [True]]))
    assert uniform_accuracy([known, unknown], 1) == (0.75,)
    assert uniform_accuracy(
        [Forecast(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0, 2, dtype=torch.bool))], 2
    ) == (None, None)


def test_wrong_states_on_purpose_cost_accuracy(evaluation, target, draft, wiring, prompts):
    wrong = evaluate(target, draft, wiring, prompts, dataclasses.replace(SETTINGS, measure=False), as_if=WRONG)
    assert wrong.all.first_token_accuracy < evaluation.all.first_token_accuracy - 0.1
    assert wrong.fed == WRONG
    assert wrong.all.measured is None
    assert to_json(wrong, None)["as_if"] == "embed,layer:0,layer:2"


@pytest.mark.parametrize(("taps", "message"), [("layer:0,layer:1", "as many states"), ("layer:0,layer:1,layer:9", "beyond the last layer")])
def test_as_if_states_must_fit(target, draft, wiring, prompts, taps, message):
    with pytest.raises(UserError, match=message):
        evaluate(target, draft, wiring, prompts[:1], SETTINGS, as_if=parse_taps(taps))


def test_speculative_output_is_the_targets_own(target, draft, prompts):
    result = check_lossless(Pair(target, draft, TAPS), prompts[:6], SETTINGS)
    assert result.differences == ()
    assert result.tokens > 60


def test_lossless_check_sees_a_changed_token(target, draft, prompts, monkeypatch):
    from eyas.evaluate import measure as module

    honest = module.transformers_greedy
    monkeypatch.setattr(module, "transformers_greedy", lambda *arguments: [*honest(*arguments)[:-1], 3, 3])
    assert len(check_lossless(Pair(target, draft, TAPS), prompts[:2], SETTINGS).differences) == 2


def test_a_wrong_prediction_is_not_excused_as_a_tie(target, draft, prompts):
    """Flip verdicts of the walk: each difference must be looked at, found far from a tie, and reported."""
    pair = Pair(target, draft, TAPS)
    answers = greedy_answers(target, prompts[:4], 40, 4)
    forecasts = forecast(pair, answers, 3, 4, lambda count: None)
    flipped = [walk(answer.tokens, (~item.hits_RK).tolist(), 3, 40) for answer, item in zip(answers, forecasts, strict=True)]
    result = agree(pair, answers, flipped, measure(pair, [answer.prompt for answer in answers], SETTINGS))
    assert result.holds is False
    assert len(result.unexplained) >= 4


def test_lower_precision_is_judged_by_a_tolerance_over_enough_rounds(target, draft, monkeypatch):
    pair = Pair(dataclasses.replace(target, dtype=torch.bfloat16), draft, TAPS)
    answer = Answer(Prompt("a", "", (1,)), tuple(range(4)), "length", False)

    def chat(accepted: int, rounds: int) -> list[Round]:
        return [Round(3, accepted, accepted + 1, tuple(range(accepted + 1)))] * rounds

    def judge(extra: int, rounds: int) -> bool | None:
        measured = tuple(chat(1, rounds) + chat(2, extra))
        return agree(pair, [answer], [chat(1, rounds)], [Output((1,), (0,), "length", measured, 0.0, 0.0)]).holds

    assert judge(100, 2000) is True
    assert judge(200, 2000) is False
    assert judge(200, 1000) is None


def output_of(tokens, rounds):
    return Output((1,), tuple(tokens), "length", tuple(rounds), 0.0, 0.0)


def rounds_of(*counts):
    return [Round(3, accepted, accepted + 1, tuple(range(accepted + 1))) for accepted in counts]


def test_rounds_are_compared_where_they_start_together():
    """Prediction accepts 1 where decoding accepts none; both meet again two tokens on, and agree from there."""
    answer = list(range(9))
    count, splits = compare_rounds(answer, rounds_of(1, 2, 2), output_of(answer, rounds_of(0, 0, 2, 2)))
    assert count == 3
    assert [(split.kind, split.row, split.step) for split in splits] == [("draft", 0, 0)]


def test_behind_a_changed_token_nothing_is_compared():
    answer, other = list(range(9)), [0, 1, 2, 3, 70, 71, 72, 73, 74]
    count, splits = compare_rounds(answer, rounds_of(1, 3, 1), output_of(other, rounds_of(1, 0, 0, 3)))
    assert [(split.kind, split.row) for split in splits] == [("draft", 2), ("target", 3)]
    count, splits = compare_rounds(answer, rounds_of(1, 1, 3), output_of(other, rounds_of(1, 1, 0, 2)))
    assert [(split.kind, split.row) for split in splits] == [("target", 3)]
    assert count == 2


def test_other_lengths_and_other_counts_are_never_excused():
    answer = list(range(6))
    assert compare_rounds(answer, rounds_of(1, 2), output_of(answer[:5], rounds_of(1, 1)))[1][-1].kind == "bookkeeping"
    short = [Round(2, 1, 2, (1, 2)), *rounds_of(2)]
    assert [split.kind for split in compare_rounds(answer, rounds_of(1, 2), output_of(answer, short))[1]] == ["bookkeeping"]


def test_prompts_end_with_the_last_user_turn(target):
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "never read"},
    ]
    chats = [
        Chat("a", tuple(turns)),
        Chat("b", (turns[1],)),
        Chat("c", ({"role": "stranger", "content": "x"}, turns[0])),
        Chat("d", ({"role": "user", "content": "long " * 3000},)),
    ]
    prompts, skipped = render_prompts(target, chats, 8)
    assert [prompt.id for prompt in prompts] == ["a"]
    text = target.tokenizer.decode(list(prompts[0].token_ids))
    assert "three" in text
    assert text.endswith("<|im_start|>assistant\n")
    assert "never read" not in text
    assert [line.split(":")[0] for line in skipped] == ["chat b", "chat c", "chat d"]
    with pytest.raises(UserError, match="no chat gives a prompt"):
        render_prompts(target, chats[1:], 8)


def test_loops_are_found_before_the_stop_token_and_left_out(target, draft, wiring, prompts, monkeypatch):
    from eyas.evaluate import answers as module

    monkeypatch.setattr(
        module, "find_loop", lambda tokens: None if target.stop_ids[0] in tokens or len(tokens) % 2 else find_loop([1] * 30)
    )
    result = evaluate(target, draft, wiring, prompts, dataclasses.replace(SETTINGS, measure=False))
    value = to_json(result, None)
    assert 0 < result.loop_share < 1
    assert value["loops"]["without_loops"]["chats"] == round(len(prompts) * (1 - value["loops"]["share"]))
    assert value["rounds"] > value["loops"]["without_loops"]["rounds"] > 0


def test_report_names_and_domains(evaluation):
    value = to_json(evaluation, None)
    wanted = "first_token_accuracy acceptance_length_predicted acceptance_length_measured lossless dtype rounds"
    wanted += " tokens_per_second_plain tokens_per_second_speculative"
    assert set(wanted.split()) <= set(value)
    assert set(value["domains"]) == {"even", "odd"}
    assert sum(figures["rounds"] for figures in value["domains"].values()) == value["rounds"] == value["measured"]["rounds"]
    assert value["tokens_per_second_plain"] > 0
    assert value["uniform_accuracy"][0] == value["first_token_accuracy"]


def test_a_small_part_is_spread_over_all_prompts(prompts):
    assert [prompt.id for prompt in spread(prompts, 4)] == ["c3", "c9", "c15", "c21"]
    assert len(spread(prompts, 999)) == len(prompts)
