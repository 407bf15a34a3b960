"""The map from rows of lm_head to the target's tokens: its invariants, the usual mistakes, and what the rows themselves say.

Shapes: V draft vocabulary, W target vocabulary, H hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.opening.expected import vocabulary

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.measuring import Result
    from eyas.doctor.replay.subject import Subject
    from eyas.draft.config import DraftConfig

_TRAINED = "put d2t and t2d of the checkpoint that lm_head was trained with back into the weights"
_SAMPLED = 1024  # rows of a large head that are looked at first
_UNLIKE = 0.3  # in cosine: so much more like another token a row must be than like its own
_OTHERS, _FEW_OTHERS = 0.02, 5  # of such rows, from which on the map is another's
_FEWEST = 3  # times a row must be preferred before it says what it means
_AGREE = 0.6  # of these times it must be for one token


@dataclass(frozen=True)
class Repair:
    """`ids` [V]: the target id of every row."""

    what: str
    ids: torch.Tensor
    remedy: str
    code: str


def check_invariants(exam: Examination) -> Outcome:
    """Ids i + d2t[i] are in range, each once, rising, and exactly those that t2d marks."""
    assert exam.draft is not None
    d2t, t2d = exam.tensors.get("d2t"), exam.tensors.get("t2d")
    own, size = vocabulary(exam.draft)
    if d2t is None:
        return untestable("there is no d2t")
    if d2t.is_floating_point() or d2t.ndim != 1:
        text = f"d2t holds {d2t.dtype} of shape {list(d2t.shape)}, not one whole number a row"
        return confirmed(Fault("map-broken", "draft", (Evidence(text),), "store d2t as int64", 0.7))
    size = size or (len(t2d) if t2d is not None else None)
    ids = d2t.long() + torch.arange(len(d2t))
    problems = _broken(ids, size)
    if bool((d2t == 0).all()) and own is not None and size is not None and own < size:
        marked = t2d is not None and t2d.ndim == 1 and not torch.equal(t2d.bool().nonzero().flatten(), ids)
        text = f"d2t is all zeros, which means the first {own} tokens of {size}" + ("; t2d marks others" if marked else "")
        if marked:
            return confirmed(Fault("map-broken", "draft", (Evidence(text),), _TRAINED, 0.85))
        return suspected(text)
    if problems and _is_absolute(d2t.long(), size):
        text = f"d2t itself is a rising list of token ids ({int(d2t[0])} to {int(d2t[-1])}); as offsets it leads to {'; '.join(problems)}"
        remedy = "subtract the row's number from each entry: d2t holds offsets, target id = i + d2t[i]"
        return confirmed(Fault("map-absolute", "draft", (Evidence(text),), remedy, 0.88, covers=("map-broken",)))
    if not problems and t2d is not None and t2d.ndim == 1:
        marked_ids = t2d.bool().nonzero().flatten()
        if not torch.equal(marked_ids, ids):
            others = int((~torch.isin(ids, marked_ids)).sum())
            problems = [f"t2d marks {len(marked_ids)} tokens, and {others} of d2t's {len(ids)} are not among them"]
    if problems:
        return confirmed(Fault("map-broken", "draft", tuple(Evidence(text) for text in problems), _TRAINED, 0.8))
    return ruled_out(f"{len(ids)} ids, in range, rising, and those that t2d marks")


def _broken(ids: torch.Tensor, size: int | None) -> list[str]:
    found = []
    outside = (ids < 0) | (ids >= size) if size is not None else ids < 0
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        found.append(f"{int(outside.sum())} ids lie outside of the target's {size} tokens, such as {int(ids[row])} in row {row}")
    if len(ids.unique()) < len(ids):
        found.append(f"{len(ids) - len(ids.unique())} tokens have two rows")
    if not found and not bool((ids[1:] > ids[:-1]).all()):
        row = int((ids[1:] <= ids[:-1]).nonzero()[0]) + 1
        found.append(f"ids do not rise: {int(ids[row - 1])} is followed by {int(ids[row])} in row {row}")
    return found


def _is_absolute(d2t: torch.Tensor, size: int | None) -> bool:
    rising = bool((d2t[1:] > d2t[:-1]).all()) and int(d2t[0]) >= 0
    return rising and (size is None or int(d2t[-1]) < size)


def repairs(exam: Examination, d2t: torch.Tensor, config: DraftConfig) -> list[Repair]:
    """Maps that the usual mistakes hide."""
    count, size = config.draft_vocab_size, config.vocab_size
    rows = torch.arange(count)
    found = []
    if _is_absolute(d2t, size):
        remedy = "subtract the row's number from each entry: d2t holds offsets"
        found.append(Repair("d2t read as token ids", d2t.clone(), remedy, "map-absolute"))
    t2d = exam.tensors.get("t2d")
    if t2d is not None and t2d.ndim == 1 and len(t2d) == size and int(t2d.bool().sum()) == count:
        found.append(Repair("the tokens that t2d marks, in order", t2d.bool().nonzero().flatten(), "rebuild d2t from t2d", "map-broken"))
    inside = d2t + rows
    if bool(((inside >= 0) & (inside < size)).all()):
        found.append(
            Repair("d2t's ids sorted", inside.sort().values, "sort d2t's ids: rows of lm_head rise with their tokens", "map-other")
        )
        found += [
            Repair(f"every id {by:+d}", (inside + by).clamp(0, size - 1), f"move every id of d2t by {by:+d}", "map-other") for by in (-1, 1)
        ]
    if exam.nearest_rows is not None and len(exam.nearest_rows) == count:
        remedy = "rebuild d2t: row i is the token whose row of the target's head it is most like"
        found.append(Repair("rows mean the target's tokens that they are most like", exam.nearest_rows, remedy, "map-other"))
    for name, ids in _counted(exam, count, size).items():
        found.append(Repair(f"the {count} most frequent tokens of {name}", ids, f"use the map that is counted on {name}", "map-other"))
    found.append(Repair(f"the first {count} tokens", rows, "the head was trained without a map: store d2t of zeros", "map-other"))
    return [repair for repair in found if len(repair.ids) == count]


def _counted(exam: Examination, count: int, size: int) -> dict[str, torch.Tensor]:
    """As a trainer makes a map: the most frequent answer tokens, in order of their ids."""
    if not exam.samples:
        return {}
    answers = [sample.token_ids[: len(sample.loss_mask)][sample.loss_mask[: len(sample.token_ids)]] for sample in exam.samples]
    tokens = torch.cat(answers)
    counts = torch.bincount(tokens[(tokens >= 0) & (tokens < size)], minlength=size)
    return {"the dump": counts.topk(min(count, size)).indices.sort().values}


def token_of_rows(result: Result, subject: Subject) -> torch.Tensor | None:
    """Ids [V] by which token the texts have where a row is preferred; None unless many rows speak for other tokens than theirs.

    Half of the rows are read, so that the other half can still judge.
    """
    count, size = subject.config.draft_vocab_size, subject.config.vocab_size
    votes = torch.zeros(count, size, dtype=torch.int32) if count * size < 1 << 28 else None
    if votes is None:
        return None
    half = torch.arange(len(result.rows)) % 2 == 0
    votes.index_put_((result.rows[half], result.label[half]), torch.ones(int(half.sum()), dtype=torch.int32), accumulate=True)
    most, token = votes.max(-1)
    total = votes.sum(-1)
    clear = (most >= _FEWEST) & (most >= _AGREE * total)
    ids = subject.ids.clamp(0, size - 1)
    if int(clear.sum()) < 5 or float((token[clear] != ids[clear]).float().mean()) < 0.2:
        return None
    taken = token[clear]
    if len(taken.unique()) < len(taken):  # two rows for one token: the one with more votes keeps it
        order = most[clear].argsort(descending=True)
        first = torch.tensor([place for place, one in enumerate(taken[order].tolist()) if one not in taken[order][:place].tolist()])
        clear = clear.nonzero().flatten()[order[first]]
    else:
        clear = clear.nonzero().flatten()
    return ids.index_put((clear,), token[clear])


@torch.no_grad()
def check_rows(exam: Examination) -> Outcome:
    """Each row of lm_head beside the target's rows: of a head that began as the target's, each is most like its own."""
    head, d2t = exam.tensors.get("lm_head.weight"), exam.tensors.get("d2t")
    parts = exam.parts
    if head is None or d2t is None or parts is None or d2t.is_floating_point() or len(d2t) != len(head):
        return untestable("lm_head, d2t or the target's head cannot be had")
    if head.shape[1] != parts.hidden_size:
        return untestable("the draft's head is of another width than the target's")
    table = parts.head_rows(torch.arange(parts.vocab_size)).float()
    ids = (d2t.long() + torch.arange(len(d2t))).clamp(0, parts.vocab_size - 1)
    every = max(1, len(head) // _SAMPLED)
    if every > 1 and float(_of_others(head[::every], table, ids[::every])[0].float().mean()) <= _OTHERS / 2:
        return ruled_out(f"of {len(head[::every])} rows of lm_head none or few are clearly like another token than d2t names")
    other, strong, nearest = _of_others(head, table, ids)
    if int(strong.sum()) < max(20, 0.2 * len(ids)):
        return untestable("the head's rows are not like the target's: it did not begin as the target's head")
    share = float(other.sum() / strong.sum())
    numbers: dict[str, Any] = {"rows": len(ids), "strong": int(strong.sum()), "other": int(other.sum())}
    if share > _OTHERS and int(other.sum()) >= _FEW_OTHERS:
        exam.nearest_rows = torch.where(strong, nearest, ids)
        text = f"of {int(strong.sum())} rows of lm_head that are like one of the target's, {percent(share)} are clearly like another one"
        text += " than that which d2t names"
        remedy = "d2t belongs to another head: " + _TRAINED
        return confirmed(Fault("map-other", "draft", (Evidence(text, numbers),), remedy, 0.82, shadow=("map-broken", "map-absolute")))
    return ruled_out(f"{percent(1 - share)} of {int(strong.sum())} rows are like those of the token that d2t names", **numbers)


def _of_others(rows_VH: torch.Tensor, table_WH: torch.Tensor, ids_V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[V]: is a row clearly like another token's row than its own; is it like any; and like which most."""
    table = torch.nn.functional.normalize(table_WH - table_WH.mean(0), dim=-1)
    rows = torch.nn.functional.normalize(rows_VH.float() - rows_VH.float().mean(0), dim=-1)
    best = [(part @ table.T).max(-1) for part in rows.split(2048)]
    likeness, nearest = torch.cat([item.values for item in best]), torch.cat([item.indices for item in best])
    chance = (2 * math.log(len(table)) / table.shape[1]) ** 0.5  # likeness that the best of so many random rows has
    strong = likeness > max(0.3, 1.5 * chance)
    return strong & (likeness - (rows * table[ids_V]).sum(-1) > _UNLIKE), strong, nearest
