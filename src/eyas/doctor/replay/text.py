"""Texts: the tokenizer, how they begin, how they are rendered, and whether the answers are the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eyas.data.chats import read_some
from eyas.data.render import ChatRenderer, SkippedChat
from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.replay.beginnings import check_beginnings
from eyas.errors import UserError
from eyas.targets.loading import load_stop_ids, load_tokenizer, tokenizer_hash

if TYPE_CHECKING:
    import torch

    from eyas.doctor.examination import Examination
    from eyas.doctor.replay.samples import RawSample

_OWN, _DOUBTFUL = 0.6, 0.8  # of the answers' tokens that the target itself prefers
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_BEGUN = 0.3  # of the answers that must begin as the target would
_CHATS = 200
_SAMPLES = 32
_REFUSED = 0.02  # of the chats that the template may refuse before the file is called broken
_THOUGHTS = ("<think>", "<|thinking|>")
_PREPARED = "prepared.json"


def check_tokenizer(exam: Examination) -> Outcome:
    assert exam.target is not None
    if not any((exam.target.folder / name).is_file() for name in _TOKENIZERS):
        return untestable("the target's folder has no tokenizer")
    try:
        here = tokenizer_hash(load_tokenizer(str(exam.target.folder), exam.exhibits.trust_remote_code))
    except UserError as error:
        text = " ".join(str(error).split())
        return confirmed(
            Fault("tokenizer-differs", "target", (Evidence(text),), "copy tokenizer.json and tokenizer_config.json again", 0.6)
        )
    words = {
        name: f"the {name} was made with tokenizer {there[:12]}, and the target's is {here[:12]}: the same text has other ids"
        for name, there in exam.recorded("tokenizer_hash").items()
        if isinstance(there, str) and there != here
    }
    if words:
        evidence, remedy = tuple(Evidence(part) for part in words.values()), "use the tokenizer files that it was made with"
        subject = " and ".join(words)
        return confirmed(Fault("tokenizer-differs", subject, evidence, remedy, 0.9, covers=("template-differs", "text-foreign")))
    return ruled_out(f"every token has the id that was recorded ({here[:12]})")


def check_bos(exam: Examination) -> Outcome:
    """Doubled where a template writes it and a tokenizer adds it once more."""
    tokenizer = exam.parts.tokenizer if exam.parts else None
    if tokenizer is None or tokenizer.bos_token_id is None:
        return untestable("the tokenizer has no begin-of-text token")
    bos = int(tokenizer.bos_token_id)
    starts = [sample.token_ids[:2].tolist() for sample in exam.samples if len(sample.token_ids) > 1]
    twice = sum(start == [bos, bos] for start in starts)
    if twice > 0.5 * len(starts):
        text = f"{twice} of {len(starts)} texts begin with token {bos} twice"
        remedy = "encode rendered chats without special tokens: the template writes the begin-of-text token itself"
        return confirmed(Fault("bos-doubled", "dump", (Evidence(text, {"twice": twice, "texts": len(starts)}),), remedy, 0.8))
    once = sum(start[0] == bos for start in starts)
    if once < 0.5 * len(starts) and _served_with(tokenizer):
        text = f"the served template begins texts with token {bos}, and {len(starts) - once} of the dump's {len(starts)} begin without it"
        return confirmed(Fault("template-differs", "dump", (Evidence(text, {"with": once, "texts": len(starts)}),), _RENDER, 0.75))
    return ruled_out(f"{twice} of {len(starts)} texts begin with token {bos} twice")


def _served_with(tokenizer: Any) -> bool:
    """Whether the template itself writes the begin-of-text token."""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True)
    except Exception:  # a template raises whatever it likes
        return False
    return isinstance(text, str) and text.startswith(str(tokenizer.bos_token))


# Whatever moves tokens or marks makes answers look foreign.
_ALSO = ("pair-shift", "label-shift", "mask-rule", "mask-shift", "tokenizer-differs", "target-changed", "dump-other-rows")


def _own_tokens(exam: Examination) -> Iterator[tuple[RawSample, torch.Tensor]]:
    """Samples with the target's own token after every position [T]; those of which nothing tells it are left out."""
    if exam.loaded_target is None:
        some = exam.samples[:_SAMPLES]
        yield from ((sample, sample.top1) for sample in some if sample.top1 is not None and len(sample.top1) == len(sample.token_ids))
    else:
        yield from ((exam.samples[run.place], run.top1) for run in exam.own_runs)


def check_own(exam: Examination) -> Outcome:
    """By the target where it can run; else by the tokens that the dump stored as its own."""
    hits = total = begun = begins = later = lasts = 0
    for sample, said in _own_tokens(exam):
        rows, ids = sample.answer_rows, sample.token_ids
        own = said[rows] == ids[rows + 1]
        hits, total = hits + int(own.sum()), total + len(rows)
        starts = ~sample.loss_mask[rows]  # the row before an answer's first token
        begun, begins = begun + int(own[starts].sum()), begins + int(starts.sum())
        for part in own.tensor_split(starts.nonzero().flatten()):
            later, lasts = later + int(part[len(part) // 2 :].sum()), lasts + len(part) - len(part) // 2
    if not total:
        return untestable("nothing says what the target itself would say here")
    share = hits / total
    tail = later / max(1, lasts)
    numbers = {"own": share, "tokens": total, "begun": begun, "answers": begins, "own_in_second_halves": tail}
    if tail >= _OWN and begins >= 10 and begun < _BEGUN * begins and not exam.suspects("mask-rule", "mask-shift"):
        text = f"{begins - begun} of {begins} answers begin otherwise than the target would, which prefers {percent(tail)} of what follows"
        text += ": they were rendered by another template, or an empty thought or a blank was put in front of them"
        return confirmed(Fault("template-differs", "dump", (Evidence(text, numbers),), _RENDER, 0.65))
    if share >= _DOUBTFUL:
        return ruled_out(f"the target itself prefers {percent(share)} of the answers' tokens", **numbers)
    text = f"the target itself prefers {percent(share)} of {total} of the answers' tokens: the draft learns to foresee somebody else"
    if share < _OWN and not exam.suspects("pair-shift", "mask-rule", "mask-shift", "tokenizer-differs", "target-changed"):
        remedy = "let the target answer the prompts: eyas data regenerate; then capture and train on that"
        return confirmed(Fault("text-foreign", "dump", (Evidence(text, numbers),), remedy, 0.7, shadow=_ALSO))
    return suspected(text, **numbers)


def check_rendering(exam: Examination) -> Outcome:
    """Marks of another template: answers that the template's own opening does not stand before, or empty thoughts."""
    from eyas.doctor.replay.dump_mask import answers, marks_of

    target = exam.parts
    if target is None or target.tokenizer is None:
        return untestable("the target's tokenizer cannot be read")
    header, stops = marks_of(exam)
    if header is None or not stops:
        return untestable("the target's template does not show where an answer begins and ends")
    samples = exam.samples[:64]
    without = [sample.id for sample in samples if not answers(sample.token_ids.tolist(), header, stops)]
    if len(without) > 0.5 * len(samples):
        text = f"in {len(without)} of {len(samples)} texts the tokens with which the template opens an answer are not found"
        return confirmed(Fault("template-differs", "dump", (Evidence(text),), _RENDER, 0.6))
    other = check_beginnings(target.tokenizer, samples, _RENDER)
    if other is not None:
        return other
    thoughts = sum(any(mark in target.tokenizer.decode(sample.token_ids) for mark in _THOUGHTS) for sample in samples)
    text = f"{len(samples) - len(without)} of {len(samples)} texts have an answer where the template opens one; {thoughts} hold a thought"
    return ruled_out(text, thoughts=thoughts)


_RENDER = "render the chats with the served template and capture again: eyas data prepare"


def check_data(exam: Examination) -> Outcome:
    """Chats of --data through the target's template; of many, some from everywhere."""
    data = exam.exhibits.data
    assert data is not None
    assert exam.target is not None
    if data.is_dir():
        if not (data / _PREPARED).is_file():
            text = f"{data.name} is a folder without {_PREPARED}: neither chats nor what eyas data prepare writes"
            return confirmed(Fault("data-broken", "data", (Evidence(text),), "give a JSON Lines file of chats, or a prepared folder", 0.7))
        return ruled_out("the chats are prepared already")
    try:
        tokenizer = load_tokenizer(str(exam.target.folder), exam.exhibits.trust_remote_code)
        renderer = ChatRenderer(tokenizer, load_stop_ids(str(exam.target.folder), tokenizer), 4096)
        chats, _ = read_some(data, _CHATS)
    except UserError as error:
        fault = Fault(
            "data-broken", "data", (Evidence(" ".join(str(error).split())),), "mend the file: one JSON object with messages a line", 0.7
        )
        return confirmed(fault)
    refused = []
    for chat in chats:
        try:
            renderer.render(chat)
        except SkippedChat as reason:
            refused.append(f"chat {chat.id}: {reason}")
    odd = [words for words in refused if "no answer" not in words and "beyond" not in words]  # prompts alone, and long ones, are lawful
    if len(odd) > _REFUSED * len(chats):
        text = f"{len(odd)} of {len(chats)} chats cannot be rendered, such as {odd[0]}"
        return confirmed(Fault("data-broken", "data", (Evidence(text),), "mend the roles and turns that the template refuses", 0.7))
    if refused:
        return suspected(f"{len(refused)} of {len(chats)} chats cannot be rendered, such as {refused[0]}")
    return ruled_out(f"{len(chats)} chats are rendered")
