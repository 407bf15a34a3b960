"""The loss: fast path against the plain one, labels against a hand-written loop, and what must not leak."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.train import loss as loss_module
from eyas.train.batches import Batch, BatchOrder, scored_rows
from eyas.train.fused import BLOCK, soft_head_loss
from eyas.train.loss import StepCounts, TeacherHead, ttt_loss

V_TARGET, V_DRAFT, H = 40, 16, 24


def make_draft() -> Eagle3Draft:
    torch.manual_seed(0)
    draft = Eagle3Draft(DraftConfig(H, H, 2, 48, 4, 2, 6, V_TARGET, V_DRAFT, {"rope_type": "default", "rope_theta": 1e4}, 128))
    for parameter in draft.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    ids = torch.arange(0, 2 * V_DRAFT, 2)
    t2d = torch.zeros(V_TARGET, dtype=torch.bool)
    t2d[ids] = True
    draft.set_vocab_map(ids - torch.arange(V_DRAFT), t2d)
    draft.use_embedding(torch.nn.Embedding(V_TARGET, H).requires_grad_(False))
    return draft


def make_batch(masks: list[list[int]]) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """A batch as `load_batch` makes it, from all positions' teacher states; samples of one length."""
    generator = torch.Generator().manual_seed(3)
    batch, length = len(masks), len(masks[0])
    token_BT = torch.randint(0, V_TARGET, (batch, length), generator=generator)
    states = torch.randn(batch, length, 2 * H, generator=generator)
    teacher = torch.randn(batch, length, H, generator=generator)
    top1 = torch.randint(0, V_TARGET, (batch, length), generator=generator)
    rows = [scored_rows(torch.tensor(mask, dtype=torch.bool)) for mask in masks]
    count = max(map(len, rows))
    row_BR, valid_BR = torch.zeros(batch, count, dtype=torch.long), torch.zeros(batch, count, dtype=torch.bool)
    for number, row in enumerate(rows):
        row_BR[number, : len(row)] = row
        valid_BR[number, : len(row)] = True
    at = (row_BR + 1).clamp(max=length - 1)
    return Batch(token_BT, states, row_BR, valid_BR, teacher.gather(1, at[:, :, None].expand(-1, -1, H)), top1.gather(1, at)), teacher, top1


MASKS = [[0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 1, 1, 1, 1, 0]]  # the second has two answers


def test_scored_rows_need_both_tokens_in_the_answer() -> None:
    assert scored_rows(torch.tensor(MASKS[0], dtype=torch.bool)).tolist() == [1, 2, 3, 4]
    assert scored_rows(torch.tensor(MASKS[1], dtype=torch.bool)).tolist() == [0, 4, 5, 6]


def test_steps_stay_within_one_answer() -> None:
    batch, _, _ = make_batch(MASKS)
    here, label = batch.step_index(2)
    pairs = [(int(batch.row_BR.flatten()[a]), int(batch.row_BR.flatten()[b])) for a, b in zip(here, label, strict=True)]
    assert pairs == [(1, 3), (2, 4), (4, 6)]


def test_loss_equals_a_loop_over_rows() -> None:
    """Step k of row p is judged by the target's distribution at p+1+k, if tokens p+1 .. p+2+k are all of one answer."""
    draft = make_draft()
    weight = torch.randn(V_DRAFT, H)
    batch, teacher, top1 = make_batch(MASKS)
    loss, counts = ttt_loss(draft, TeacherHead(weight, 1.0, None, torch.float32), batch, 3, 0.8)
    outputs = unroll(draft, batch.token_BT, batch.states_BTS, 3)
    expected = torch.zeros(())
    for step in range(3):
        losses, hits, rows = [], 0, 0
        for sample, mask in enumerate(MASKS):
            for row in range(len(mask) - 2 - step):
                if not all(mask[row + 1 : row + 3 + step]):
                    continue
                rows += 1
                at = row + 1 + step
                logits = draft.logits(outputs[step][sample, row])
                hits += int(draft.to_target(logits.argmax()) == top1[sample, at])
                if draft.t2d[top1[sample, at]]:
                    probs = (teacher[sample, at] @ weight.T).softmax(-1)
                    losses.append(-(probs * logits.log_softmax(-1)).sum())
        assert counts.rows[step] == rows
        assert counts.hits[step] == hits
        expected = expected + 0.8**step * torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)


def test_alive_counts_chain_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one answer of six: hits at steps 0 and 1 are chosen; the conditional figures are counted by hand."""
    draft = make_draft()
    batch, _, _ = make_batch([[0, 1, 1, 1, 1, 1, 1, 0]])
    batch = Batch(batch.token_BT, batch.states_BTS, batch.row_BR, batch.valid_BR, batch.teacher_BRH, torch.zeros_like(batch.top1_BR))
    best = torch.tensor([0, 1, 0, 0, 1, 0, 0, 1, 0])  # rows 0-4 at step 0, rows 0-3 at step 1; draft id 0 is target id 0: a hit
    monkeypatch.setattr(loss_module, "soft_head_loss", lambda x, *rest: (x.sum(-1), best))
    _, counts = ttt_loss(draft, TeacherHead(torch.randn(V_DRAFT, H), 1.0, None, torch.float32), batch, 2, 0.8)
    assert counts.rows == [5, 4]
    assert counts.hits == [3, 3]
    assert counts.alive_rows == [5, 3]  # rows 0, 2 and 3 missed nothing before step 1
    assert counts.alive == [3, 2]


def test_fused_loss_equals_the_plain_one_in_value_and_gradient() -> None:
    torch.manual_seed(0)
    rows, labels, hidden, vocab = 2 * BLOCK + 77, 700, 32, 100
    x = torch.randn(rows, hidden, requires_grad=True)
    weight = torch.randn(vocab, hidden, requires_grad=True)
    probs, label, known = torch.randn(labels, vocab).softmax(-1), torch.randint(0, labels, (rows,)), torch.rand(rows) > 0.2
    pull = torch.rand(rows)
    losses, best = soft_head_loss(x, weight, probs, label, known)
    (losses * pull).sum().backward()
    got = x.grad.clone(), weight.grad.clone()
    x.grad = weight.grad = None
    logits = x @ weight.T
    plain = F.cross_entropy(logits, probs[label], reduction="none") * known
    (plain * pull).sum().backward()
    torch.testing.assert_close(losses, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(best, logits.argmax(-1))
    torch.testing.assert_close(got, (x.grad, weight.grad), atol=1e-5, rtol=1e-4)


def test_training_runs_through_the_fused_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = loss_module.soft_head_loss
    monkeypatch.setattr(loss_module, "soft_head_loss", lambda *args: calls.append(1) or original(*args))
    batch, _, _ = make_batch(MASKS)
    ttt_loss(make_draft(), TeacherHead(torch.randn(V_DRAFT, H), 1.0, None, torch.float32), batch, 3, 0.8)
    assert len(calls) == 1


def test_no_label_leaks_into_the_prediction() -> None:
    """The gradient of row p's step k with respect to later states, and to the embedding of later tokens, is zero."""
    draft = make_draft()
    batch, _, _ = make_batch(MASKS)
    states = batch.states_BTS.clone().requires_grad_(True)
    for step, output in enumerate(unroll(draft, batch.token_BT, states, 3)):
        (gradient,) = torch.autograd.grad(output[0, 3].sum(), states, retain_graph=True)
        assert gradient[0, :4].abs().sum() > 0
        assert gradient[0, 4:].abs().sum() == 0, f"step {step}"


def test_teacher_head_applies_scale_and_softcap() -> None:
    weight, state = torch.randn(V_DRAFT, H), torch.randn(5, H)
    got = TeacherHead(weight, 0.25, 3.0, torch.float32)(state)
    torch.testing.assert_close(got, (3.0 * torch.tanh(state @ weight.T * 0.25 / 3.0)).softmax(-1))


def test_batch_order_is_a_function_of_the_step_and_covers_every_epoch() -> None:
    samples, lengths = list(range(0, 60, 2)), [5 + index % 17 for index in range(60)]
    order, again = (BatchOrder(samples, lengths, 64, seed=1) for _ in range(2))
    size = order.batches_per_epoch
    assert sorted(index for step in range(size) for index in order.at(step)) == samples
    later = len({tuple(order.at(step)) for step in range(size)} - {tuple(order.at(size + step)) for step in range(size)})
    assert later > 0
    assert [again.at(step) for step in (size + 3, 2)] == [order.at(step) for step in (size + 3, 2)]
    for step in range(size):
        batch = order.at(step)
        assert len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= 64


def test_simulated_length_from_conditional_rates() -> None:
    counts = StepCounts([0.0, 0.0], [10, 8], [5, 3], [5, 2], [10, 4])
    assert counts.conditional_accuracy == [0.5, 0.5]
    assert counts.simulated_acceptance_length == 1 + 0.5 + 0.25
