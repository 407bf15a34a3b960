"""The acts of the quickstart, in order. Each is what one command of Eyas does, with that command's own code.

OUT/target/                    the model                       eyas model pull
OUT/chats/{train,heldout}.jsonl    chats, answered by it       eyas data regenerate, prepare
OUT/dump/                      its hidden states               eyas capture
OUT/draft/                     the draft                       eyas train
OUT/summary.json, report.png   the figures                     eyas evaluate, generate
OUT/shipped/                   the draft that comes along      eyas model pull
"""

from __future__ import annotations

import dataclasses
import shutil
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from eyas.capture.corpus import read_corpus
from eyas.capture.job import CaptureSettings
from eyas.capture.own import own_share
from eyas.capture.runner import capture_to_dump
from eyas.data.chats import Chat, read_chats, write_chats
from eyas.data.journal import journal_of
from eyas.data.overlap import overlap
from eyas.data.prepare import PrepareSettings, prepare
from eyas.data.regenerate import regenerate
from eyas.data.sample import sample_prompts
from eyas.data.store import Dump
from eyas.engine.pair import attach_draft
from eyas.engine.ties import explain_difference
from eyas.errors import UserError
from eyas.evaluate.answers import Prompt, greedy_answers, render_prompts, spread
from eyas.evaluate.plot import check_can_plot
from eyas.evaluate.settings import EvaluateSettings, Pair
from eyas.files import check_folder_writable, exclusive, write_json, writing
from eyas.progress import console
from eyas.quickstart.figures import draft_figures, lossless_in_fp32, plot, table
from eyas.quickstart.ledger import Act, Ledger
from eyas.quickstart.recipe import Recipe
from eyas.quickstart.show import decode_with_rounds
from eyas.targets.catalog import pull
from eyas.targets.devices import dtype_name
from eyas.targets.generate import BatchSettings
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.train.loop import Trainer
from eyas.train.settings import TrainSettings

RECORD = "quickstart.json"
OWN, SHIPPED = "trained just now", "trained for longer"
_SHOWN_PROMPT = "Explain in a few sentences why the sky is blue."
_SHOWN_TOKENS = 72
_SHARD_BYTES = 32 << 20  # a killed capture goes on behind its last whole shard
_PROBED_ANSWERS = 24  # enough to see an answer that is not the target's


def run_quickstart(out: Path, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Play all acts, or those that are still to be played; returns what summary.json holds.

    Raises UserError if `out` holds a quickstart with other settings or somebody else's files, or if matplotlib is missing.
    """
    check_can_plot()
    check_folder_writable(out)
    _refuse_foreign(out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        return _Quickstart(out, recipe, device, dtype).run()


def _refuse_foreign(out: Path) -> None:
    """An act clears away what a killed run left of its outputs; in a folder that is not a quickstart's these are the user's own."""
    found = sorted(item.name for item in out.iterdir() if not item.name.startswith(".")) if out.is_dir() else []
    if found and not (out / RECORD).is_file():
        raise UserError(
            f"{out} holds files that no quickstart made",
            got=", ".join(found[:8]),
            allowed="a new folder, or that of an earlier quickstart",
            remedy="give another --out",
        )


class _Quickstart:
    def __init__(self, out: Path, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> None:
        self.out, self.recipe, self.device, self.dtype = out, recipe, device, dtype
        self.target_folder, self.dump, self.draft, self.shipped = out / "target", out / "dump", out / "draft", out / "shipped"
        self.prepared = out / "prepared"
        self.prompts, self.train, self.heldout = (out / "chats" / f"{name}.jsonl" for name in ("prompts", "train", "heldout"))
        identity = {**recipe.to_json(), "device": device.type, "dtype": dtype_name(dtype)}
        self._pairs: dict[Path, Pair] = {}
        self.ledger = Ledger(out / RECORD, identity, len(self._acts()))

    @cached_property
    def target(self) -> Target:
        return load_target(str(self.target_folder), device=self.device, dtype=self.dtype)

    def run(self) -> dict[str, Any]:
        done = {act.name: self.ledger.run(act) for act in self._acts()}
        return self._finish(done)

    def _acts(self) -> list[Act]:
        target, dump, draft, shipped = self.target_folder, self.dump, self.draft, self.shipped
        return [
            Act(
                "target",
                "The target",
                "A small instruct model from a Python package, unpacked to a Hugging Face folder.",
                self._pull_target,
                outputs=(target,),
            ),
            Act(
                "prompts",
                "The prompts",
                "Written for Eyas, and written by the model itself; the held-out ones stay apart.",
                self._write_prompts,
                inputs=(target,),
                outputs=(self.prompts, self.heldout),
                scratch=(journal_of(self.prompts),),
            ),
            Act(
                "answers",
                "The answers",
                "The model's own, since a draft must foresee what its target says: most come along, answered beforehand.",
                self._answer,
                inputs=(target, self.prompts),
                outputs=(self.train, self.prepared),
                scratch=(journal_of(self.train),),
            ),
            Act(
                "dump",
                "The hidden states",
                f"The model reads the chats; its states at {self.recipe.taps} and its last one are kept.",
                self._capture,
                inputs=(target, self.prepared),
                outputs=(dump,),
            ),
            Act(
                "draft",
                "The draft",
                "One layer learns to foresee what the model will say, several tokens ahead.",
                self._train,
                inputs=(target, dump),
                outputs=(draft,),
                scratch=(self.out / "draft.training",),
            ),
            Act(
                "shipped",
                "The draft that comes with Eyas",
                "Made in the same way, from more text and for longer.",
                self._pull_shipped,
                inputs=(target,),
                outputs=(shipped,),
            ),
            Act(
                "figures",
                "The proof",
                "Held-out prompts: what a draft would do, what it does, and that the output is the model's own.",
                self._evaluate,
                inputs=(target, draft, shipped, self.heldout),
            ),
            Act("show", "Decoding", "One answer with each draft; what the draft foresaw is green.", self._show, inputs=(draft, shipped)),
        ]

    # -- acts ----------------------------------------------------------------------------------------------------

    def _pull_target(self) -> dict[str, Any]:
        shutil.rmtree(self.target_folder, ignore_errors=True)
        pull(self.recipe.target, self.target_folder)
        return {}

    def _write_prompts(self) -> dict[str, Any]:
        heldout = _built_in("heldout")
        texts = [_words(chat) for chat in heldout]
        chats = spread(_built_in("answered"), self.recipe.num_chats)
        missing = self.recipe.num_chats - len(chats)
        sampled: dict[str, Any] = {}
        if missing > 0:
            settings = BatchSettings(max_new_tokens=96, temperature=1.0, top_p=0.95, seed=self.recipe.seed)
            written, report = sample_prompts(self.target, missing, self.prompts, settings, texts)
            chats, sampled = [*chats, *written], dataclasses.asdict(report)
        write_chats(self.heldout, heldout)
        write_chats(self.prompts, chats)
        shared = overlap(texts, (_words(chat) for chat in chats))
        console.print(f"     {len(chats)} prompts; {shared:.1%} of the held-out prompts' 4-grams occur in them", highlight=False)
        return {"prompts": len(chats), "sampled": sampled, "heldout_prompts": len(heldout), "heldout_overlap": shared}

    def _answer(self) -> dict[str, Any]:
        chats = list(read_chats(self.prompts))
        questions = [chat for chat in chats if chat.messages[-1]["role"] != "assistant"]
        if questions:
            settings = BatchSettings(max_new_tokens=self.recipe.answer_tokens, stop_at_loop=True)
            answered, _ = regenerate(self.target, questions, self.train, settings, self.recipe.prompt_tokens)
            ready = {chat.id: chat for chat in chats} | {chat.id: None for chat in questions} | {chat.id: chat for chat in answered}
            chats = [chat for chat in ready.values() if chat is not None]
        write_chats(self.train, chats)
        shutil.rmtree(self.prepared, ignore_errors=True)
        longest = PrepareSettings(max_length=self.recipe.prompt_tokens + self.recipe.answer_tokens)
        prepare(str(self.target_folder), [self.train], self.prepared, longest)
        texts = read_corpus(self.prepared, str(self.target_folder)).texts
        share = own_share(self.target, spread(texts, _PROBED_ANSWERS))
        tokens = sum(sum(text.loss_mask) for text in texts)
        console.print(
            f"     {tokens:,} tokens in {len(chats)} answers; {share:.1%} of a sample are the model's first choice", highlight=False
        )
        return {"chats": len(chats), "answered_now": len(questions), "answer_tokens": tokens, "own_share": share}

    def _capture(self) -> dict[str, Any]:
        command = f"eyas quickstart --minutes {self.recipe.minutes:g}"
        settings = CaptureSettings(taps=self.recipe.parsed_taps, shard_bytes=_SHARD_BYTES, command=command)
        return capture_to_dump(self.target, read_corpus(self.prepared, str(self.target_folder)), settings, self.dump).to_json()

    def _train(self) -> dict[str, Any]:
        shutil.rmtree(self.draft, ignore_errors=True)  # one that was finished, but not yet written down
        minutes = self.ledger.once("training_minutes", self._minutes_left)
        length = {"steps": self.recipe.training_steps} if self.recipe.training_steps is not None else {"minutes": minutes}
        settings = TrainSettings(
            **length,
            learning_rate=self.recipe.learning_rate,
            tokens_per_batch=self.recipe.tokens_per_batch,
            draft_vocab_size=self.recipe.draft_vocab_size,
            dtype=dtype_name(self.dtype),
            seed=self.recipe.seed,
        )
        report = Trainer(self.target, Dump.open(self.dump), settings, self.draft).run()
        console.print(f"     {report.steps} steps, {report.tokens_passed:,} answer tokens passed", highlight=False)
        return dataclasses.asdict(report)

    def _pull_shipped(self) -> dict[str, Any]:
        shutil.rmtree(self.shipped, ignore_errors=True)
        try:
            pull(self.recipe.shipped, self.shipped)
        except UserError as error:
            console.print(f"     not to be had: {error.what}", markup=False, highlight=False)
            return {"reason": str(error)}
        return {"reason": None}

    def _evaluate(self) -> dict[str, Any]:
        settings = EvaluateSettings(
            self.recipe.num_draft_tokens, self.recipe.evaluated_tokens, batch=16, speed_prompts=self.recipe.speed_prompts
        )
        prompts = self._heldout_prompts()
        answers = greedy_answers(self.target, prompts, settings.max_new_tokens, batch=32)
        few = spread(prompts, self.recipe.lossless_prompts)
        found = {}
        for name, folder in self._drafts().items():
            console.print(f"     the draft that was {name}:", highlight=False)
            figures = draft_figures(self._pair(folder), answers, settings)
            lossless = lossless_in_fp32(str(self.target_folder), folder, self.device, few, settings.num_draft_tokens)
            found[name] = {**figures, "lossless": lossless.holds, "lossless_check": lossless.to_json()}
        return found

    def _show(self) -> dict[str, Any]:
        [prompt], _ = render_prompts(self.target, [Chat("shown", ({"role": "user", "content": _SHOWN_PROMPT},))], _SHOWN_TOKENS)
        console.print(f"\n{_SHOWN_PROMPT}", style="bold", highlight=False)
        ids, answers = list(prompt.token_ids), []
        for name, folder in self._drafts().items():
            console.print(f"\n[{name}]", style="dim", markup=False, highlight=False)
            answers.append(decode_with_rounds(console, self._pair(folder), ids, _SHOWN_TOKENS, self.recipe.num_draft_tokens).tokens)
        difference = explain_difference(self.target, ids, answers[0], answers[-1])
        if difference is not None:  # the target's answer must not depend on the draft
            undecided = f"Where the two part, the target itself is undecided in {dtype_name(self.dtype)}"
            console.print(f"\n{undecided if difference.is_tie else 'NOT lossless'}: {difference.text()}", highlight=False)
        return {"difference": None if difference is None else difference.text()}

    # -- parts ---------------------------------------------------------------------------------------------------

    def _drafts(self) -> dict[str, Path]:
        return {name: folder for name, folder in ((OWN, self.draft), (SHIPPED, self.shipped)) if folder.is_dir()}

    def _pair(self, folder: Path) -> Pair:
        if folder not in self._pairs:
            pair = attach_draft(self.target, folder)
            assert pair.draft is not None
            self._pairs[folder] = Pair(pair.target, pair.draft, pair.taps)
        return self._pairs[folder]

    def _heldout_prompts(self) -> list[Prompt]:
        prompts, skipped = render_prompts(self.target, list(read_chats(self.heldout)), self.recipe.evaluated_tokens)
        for reason in skipped:
            console.print(f"     left out: {reason}", markup=False, highlight=False)
        return spread(prompts, self.recipe.evaluated)

    def _minutes_left(self) -> float:
        """What the recipe's time leaves for training; at least half a minute, however slow the machine was so far."""
        return round(max(0.5, self.recipe.minutes - (self.ledger.seconds + self.recipe.seconds_behind) / 60), 2)

    def _finish(self, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
        figures = done["figures"]
        summary = {
            **_with_loops_left_out(figures[OWN]),
            "shipped": _with_loops_left_out(figures[SHIPPED]) if SHIPPED in figures else None,
            "shipped_reason": done["shipped"]["reason"],
            "target": self.recipe.target,
            "minutes": self.recipe.minutes,
            "acts": {name: result for name, result in done.items() if name not in ("figures", "show")},
            "seconds_by_act": self.ledger.act_seconds,
            "wall_seconds": self.ledger.seconds,
            "peak_rss_gib": self.ledger.peak_rss_gib,
        }
        plot(self.out / "report.png", figures, self.recipe.target, self.recipe.evaluated_tokens)
        write_json(self.out / "summary.json", summary)
        console.print()
        console.print(table(figures))
        console.print(f"{summary['wall_seconds'] / 60:.1f} minutes, {summary['peak_rss_gib']:.1f} GiB of memory at most", highlight=False)
        console.print(f"all figures: {self.out}/summary.json, {self.out}/report.png", markup=False, highlight=False)
        return summary


def _with_loops_left_out(figures: dict[str, Any]) -> dict[str, Any]:
    return {**figures, "without_loops": figures["loops"]["without_loops"]}


def _built_in(name: str) -> list[Chat]:
    with resources.as_file(resources.files("eyas.data").joinpath(f"prompts/{name}.jsonl")) as path:
        return list(read_chats(path))


def _words(chat: Chat) -> str:
    return "\n".join(str(message["content"]) for message in chat.messages)
