"""Two faults at once. The second one stands behind the first: a doctor that stops at one cause has not finished."""

from __future__ import annotations

from dataclasses import dataclass

from seeded import behaviour, contents, dumps, figures, folders, headers, ranks, served, some_rows, texts, theirs
from seeded.edits import Choice, Tensors, earlier, further, names_of, redraft, redump, retarget, rolled
from seeded.registry import FAULTS, REPLAY, Fault, Plant
from seeded.sets import THETA, Set

assert served.EMBEDDED and headers.every_shard and ranks.partial and some_rows.stuck_labels and theirs.wrapped, "importing plants them"


@dataclass(frozen=True)
class Pair:
    """`codes`: both causes. `plants` are applied one after the other to one set."""

    name: str
    codes: tuple[str, str]
    plants: tuple[Plant, Plant]
    given: tuple[str, ...]
    family: str = "llama"
    depths: tuple[str, ...] = REPLAY

    def plant(self, s: Set) -> Set:
        for one in self.plants:
            s = one(s)
        return s.but(given=self.given)


def named(code: str, name: str) -> Fault:
    [found] = [item for item in FAULTS if (item.code, item.name) == (code, name)][:1]
    return found


DRAFT, EVERYTHING = ("target", "draft", "data"), ("target", "draft", "dump", "data")


def tap(choice: Choice) -> Plant:
    return lambda s: redraft(s, wiring={"taps": names_of(s, choice)})


def config(**changes: object) -> Plant:
    return lambda s: redraft(s, config=changes)


def tensors(change: object) -> Plant:
    return lambda s: redraft(s, change)  # type: ignore[arg-type]


def theta(value: float) -> Plant:
    return config(rope_parameters={"rope_type": "default", "rope_theta": value})


def rows(name: str, by: int) -> Plant:
    return lambda s: redump(s, rolled(name, by))


def teacher(fault_name: str) -> Plant:
    return named("teacher-layer", fault_name).plant


def slots(held: Tensors) -> None:
    import torch

    held["fc.weight"] = torch.cat([held["fc.weight"].chunk(3, dim=1)[slot] for slot in (2, 1, 0)], dim=1)


STORY = "labels from the layer before the last"
PAIRS = (
    Pair("the story: taps and teacher", ("taps-shifted", "teacher-layer"), (teacher(STORY), tap(earlier)), EVERYTHING),
    Pair("the story, on another family", ("taps-shifted", "teacher-layer"), (teacher(STORY), tap(earlier)), EVERYTHING, "qwen3"),
    Pair("the story, from the draft alone", ("taps-shifted", "teacher-layer"), (dumps.learnt_from_layer_1, tap(earlier)), DRAFT),
    Pair("taps and feedback", ("taps-shifted", "norm-feedback"), (tap(further), config(norm_output=True)), DRAFT),
    Pair("taps and residual", ("taps-shifted", "norm-placement"), (tap(earlier), config(norm_before_residual=True)), DRAFT),
    Pair("taps and theta", ("taps-shifted", "rope-theta"), (tap(further), theta(100.0)), DRAFT, "qwen3"),
    Pair("taps and map", ("taps-shifted", "map-other"), (tap(earlier), tensors(contents.first_ids)), DRAFT),
    Pair("taps and head", ("taps-shifted", "head-foreign"), (tap(further), tensors(contents.random_head)), DRAFT, "deepseek_v3"),
    Pair("slots and feedback", ("slot-order", "norm-feedback"), (tensors(slots), config(norm_output=True)), DRAFT),
    Pair("slots and halves", ("slot-order", "half-order"), (tensors(slots), tensors(behaviour.swap_halves)), DRAFT, "qwen3"),
    Pair("slots and theta", ("slot-order", "rope-theta"), (tensors(slots), theta(10000.0)), DRAFT),
    Pair(
        "halves and residual", ("half-order", "norm-placement"), (tensors(behaviour.swap_halves), config(norm_before_residual=True)), DRAFT
    ),
    Pair("map and theta", ("map-other", "rope-theta"), (tensors(contents.of_other_data), theta(100.0)), DRAFT),
    Pair(
        "pairing and labels",
        ("pair-shift", "label-shift"),
        (rows("states", 1), named("label-shift", "labels one position late").plant),
        EVERYTHING,
    ),
    Pair("pairing and mask", ("pair-shift", "mask-shift"), (rows("states", 1), rows("loss_mask", 1)), EVERYTHING),
    Pair(
        "teacher and mask",
        ("teacher-layer", "mask-rule"),
        (teacher(STORY), named("mask-rule", "the questions are marked").plant),
        EVERYTHING,
    ),
    Pair("template and taps", ("template-differs", "taps-shifted"), (texts.other_template, tap(earlier)), EVERYTHING),
    Pair("tokenizer and feedback", ("tokenizer-differs", "norm-feedback"), (texts.other_tokenizer, config(norm_output=True)), EVERYTHING),
    Pair("changed target and taps", ("target-changed", "taps-shifted"), (lambda s: retarget(s, texts.tuned), tap(further)), DRAFT),
    Pair(
        "NaN rows and taps", ("dump-not-finite", "taps-shifted"), (lambda s: redump(s, dumps.poke(float("nan"))), tap(earlier)), EVERYTHING
    ),
    Pair("short positions and slots", ("rope-range", "slot-order"), (config(max_position_embeddings=16), tensors(slots)), DRAFT),
    Pair(
        "bad figures and residual",
        ("metric-impossible", "norm-placement"),
        (lambda s: odd_figures(s), config(norm_before_residual=True)),
        DRAFT,
    ),
    Pair(
        "untrained part and taps",
        ("weights-untrained", "taps-shifted"),
        (tensors(folders.constant("midlayer.mlp.down_proj.weight", 0.0)), tap(further)),
        DRAFT,
    ),
)


def odd_figures(s: Set) -> Set:
    return s.but(metrics=figures.saved(s, "odd.txt", figures.vllm_metrics(100, 300, 420, (160, 140, 120))))


assert THETA not in (100.0, 10000.0), "the planted thetas must be wrong ones"
