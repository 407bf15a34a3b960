"""The text on which drafts are replayed: the user's own chats, else the dump's, else held-out prompts that the target answers.

Legend: B texts, T positions, n slots, H hidden size, R rows (padded).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from eyas.capture.corpus import read_corpus
from eyas.capture.plan import Text
from eyas.data.chats import read_chats, read_some
from eyas.errors import UserError
from eyas.evaluate.answers import greedy_answers, render_prompts, spread
from eyas.evaluate.infer.evidence import MIN_ROWS, Batch, Evidence, gather_evidence
from eyas.files import write_text
from eyas.taps import Tap
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.samples import RawSample

_SEARCH_ROWS = 384
_PROMPTS, _NEW_TOKENS, _BATCH = 48, 96, 16
_BATCH_TOKENS = 2048
_CHATS = 400
MADE_UP = "held-out prompts, answered by the target"  # for want of chats: few targets and drafts were trained on such
_HELD_OUT = Path(__file__).parents[2] / "data" / "prompts" / "heldout.jsonl"


def evidence_of(exam: Examination) -> Evidence:
    """With the whole target any text will do; without its layers only what a dump holds. Raises UserError if there is no text."""
    target = exam.loaded_target
    if target is not None:
        texts = exam.texts
        exam.measured["texts"] = len(texts)
        return gather_evidence(target, texts, exam.options.rows, _SEARCH_ROWS)
    if not exam.samples:
        raise UserError(f"{exam.why_no_target}, and there is no dump to replay", remedy="give --dump")
    return evidence_of_dump(exam)


def texts_of(exam: Examination, target: Target) -> list[Text]:
    """In order of preference. Raises UserError if there is none."""
    if exam.exhibits.data is not None:
        return _given(exam, target, exam.exhibits.data)
    texts = [_text(sample) for sample in exam.samples]
    good = [text for text in texts if text.num_scored_rows and max(text.token_ids) < target.vocab_size and min(text.token_ids) >= 0]
    if good:
        return good
    exam.measured["texts_from"] = MADE_UP
    return _answered(target, _HELD_OUT)


def _given(exam: Examination, target: Target, data: Path) -> list[Text]:
    """The user's chats with their answers; where most of them are prompts, the target answers all."""
    try:
        texts, why = _chats(exam, data), ""
    except UserError as error:
        if data.is_dir():
            raise  # it holds ids, and no chats to answer anew
        texts, why = [], f": {error.what}"
    asked = sum(1 for _ in read_chats(data)) if data.is_file() else 0
    if texts and 2 * len(texts) >= min(asked, _CHATS):
        return texts
    exam.notes.append(f"{len(texts)} of {asked} chats of --data have answers that can be replayed, so the target answers them anew{why}")
    return _answered(target, data)


def _chats(exam: Examination, data: Path) -> list[Text]:
    """Of a file with many chats, some from everywhere: a replay needs no more rows than it measures."""
    target, trusted = str(exam.exhibits.target), exam.exhibits.trust_remote_code
    chats, total = read_some(data, _CHATS) if data.is_file() else ([], 0)
    if total <= _CHATS:
        return list(read_corpus(data, target, trusted).texts)
    with tempfile.TemporaryDirectory() as folder:
        some = Path(folder) / data.name
        write_text(some, "".join(json.dumps(chat.to_json()) + "\n" for chat in chats))
        return list(read_corpus(some, target, trusted).texts)


def _answered(target: Target, chats: Path) -> list[Text]:
    prompts, _ = render_prompts(target, read_some(chats, _CHATS)[0], _NEW_TOKENS)
    answers = greedy_answers(target, spread(prompts, _PROMPTS), _NEW_TOKENS, _BATCH)
    return [
        Text(answer.prompt.id, tuple(answer.token_ids), (*(False for _ in answer.prompt.token_ids), *(True for _ in answer.tokens)))
        for answer in answers
    ]


def _text(sample: RawSample) -> Text:
    count = min(len(sample.token_ids), len(sample.loss_mask))
    return Text(sample.id, tuple(sample.token_ids[:count].tolist()), tuple(sample.loss_mask[:count].tolist()))


@torch.no_grad()
def evidence_of_dump(exam: Examination) -> Evidence:
    """The dump's own states in the slots that it names, and the labels that it stored."""
    target = exam.parts
    assert target is not None
    usable = [sample for sample in exam.samples if sample.taps is not None and _fits(sample, target)]
    if not usable:
        raise UserError("the dump does not say what its states are, or they are not of this target's size")
    taps = tuple(Tap.parse(tap) for tap in usable[0].taps or ())
    if len(set(taps)) < len(taps):
        raise UserError("the dump names a state twice", got=[str(tap) for tap in taps])
    rows, chosen = 0, []
    for sample in usable:
        chosen.append(sample)
        rows += _text(sample).num_scored_rows
        if rows >= max(exam.options.rows, MIN_ROWS):
            break
    batches = [_batch(target, group) for group in _groups(chosen) if any(_text(sample).num_scored_rows for sample in group)]
    if not batches:
        raise UserError("no sample of the dump has two answer tokens in a row")
    dense = sorted(chosen, key=lambda sample: -_text(sample).num_scored_rows / len(sample.token_ids))
    search, held = [], 0
    while dense and held < _SEARCH_ROWS:
        search.append(dense.pop(0))
        held += _text(search[-1]).num_scored_rows
    return Evidence(taps, _batch(target, search), tuple(batches), ())


def _fits(sample: RawSample, target: Target) -> bool:
    width = len(sample.taps or ()) * target.hidden_size
    ids = sample.token_ids
    whole = sample.states.shape == (len(ids), width) and bool(torch.isfinite(sample.states).all())
    return whole and int(ids.min()) >= 0 and int(ids.max()) < target.vocab_size and (sample.top1 is not None or sample.teacher is not None)


def _groups(samples: Sequence[RawSample]) -> list[list[RawSample]]:
    groups: list[list[RawSample]] = [[]]
    for sample in sorted(samples, key=lambda sample: len(sample.token_ids)):
        if groups[-1] and len(sample.token_ids) * (len(groups[-1]) + 1) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(sample)
    return groups


def _batch(target: Target, samples: Sequence[RawSample]) -> Batch:
    pad = torch.nn.utils.rnn.pad_sequence
    masks = [_text(sample).loss_mask for sample in samples]
    rows = [torch.tensor([row for row in range(len(mask) - 2) if mask[row + 1] and mask[row + 2]], dtype=torch.long) for mask in masks]
    row_BR = pad(rows, batch_first=True)
    valid_BR = pad([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
    following_BR = torch.zeros_like(valid_BR)
    following_BR[:, :-1] = valid_BR[:, 1:] & (row_BR[:, 1:] == row_BR[:, :-1] + 1)
    top1_BT = pad([labels_of(sample, target) for sample in samples], batch_first=True)
    states_BTS = pad([sample.states.float() for sample in samples], batch_first=True)
    last = top1_BT.shape[1] - 1
    return Batch(
        token_BT=pad([sample.token_ids for sample in samples], batch_first=True),
        states=tuple(part.contiguous() for part in states_BTS.split(target.hidden_size, dim=-1)),
        row_BR=row_BR,
        valid_BR=valid_BR,
        label_BR=top1_BT.gather(1, (row_BR + 1).clamp(max=last)),
        next_label_BR=top1_BT.gather(1, (row_BR + 2).clamp(max=last)),
        next_valid_BR=following_BR,
    )


def labels_of(sample: RawSample, target: Target) -> torch.Tensor:
    """The target's own token after each position [T]: as stored, else by the labels' state through the head."""
    if sample.top1 is not None and len(sample.top1) == len(sample.token_ids):
        return sample.top1
    assert sample.teacher is not None
    final_TH = sample.teacher.float()
    return target.head((final_TH if sample.normed else target.norm(final_TH))[None])[0].argmax(-1)
