"""Lawful differences: nothing is wrong with any of these, and a doctor who finds something has not understood them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eyas.draft.checkpoint import read_draft
from eyas.draft.permute import permute_taps
from seeded.dumps import target_of
from seeded.edits import (
    Rows,
    Tensors,
    exported,
    foreign,
    in_int4,
    raw_tensors,
    redraft,
    redump,
    retarget,
)
from seeded.figures import drifting_log, saved, vllm_metrics
from seeded.registry import FILES, REPLAY
from seeded.served import BENCHMARK, TABLE, loaded_log, report_json, updated_log, waves
from seeded.sets import FAMILIES, SWITCHES, Set, begin_draft, make_dump, own_answers, train_draft, write_chats


@dataclass(frozen=True)
class Healthy:
    """`verdicts`: those that are right; a draft that is only weak may be called so."""

    name: str
    plant: Callable[[Set], Set]
    families: tuple[str, ...] = ("llama",)
    depths: tuple[str, ...] = REPLAY
    verdicts: tuple[str, ...] = ("healthy",)


def as_they_are(s: Set) -> Set:
    return s


def target_in_bf16(s: Set) -> Set:
    made = retarget(s, lambda held: held.update({name: weight.bfloat16() for name, weight in held.items()}), {"dtype": "bfloat16"})
    return made.but(given=("target", "draft", "data"))


def target_in_int8(s: Set) -> Set:
    """Every matrix rounded to 255 steps a row, as a quantised copy has it after it is unpacked."""

    def change(held: Tensors) -> None:
        for name, weight in held.items():
            if weight.dim() == 2:
                scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
                held[name] = (weight / scale).round() * scale

    return retarget(s, change).but(given=("target", "draft", "data"))


def rope_from_one(s: Set) -> Set:
    """Positions that all start at 1: RoPE turns by differences only."""
    return redraft(s, wiring={"rope_offset": 1})


def other_mask_rule(s: Set) -> Set:
    return redraft(s, wiring={"loss_mask_rule": "row p is trained iff token[p] is an answer token"})


def boundary_token_left_out(s: Set) -> Set:
    """The dump's mask leaves the first token of each answer out, as some projects do."""

    def change(number: int, rows: Rows) -> None:
        mask = rows["loss_mask"]
        starts = (mask[1:] > mask[:-1]).nonzero().flatten() + 1
        mask[starts] = 0

    return redump(s, change)


def whole_vocabulary(s: Set) -> Set:
    train_draft(target_of(s.target), s.dump, s.work / "whole", SWITCHES[s.family], draft_vocab_size=target_of(s.target).vocab_size)
    return s.but(draft=s.work / "whole")


def weak(s: Set) -> Set:
    """Wired right and hardly trained."""
    train_draft(target_of(s.target), s.dump, s.work / "weak", SWITCHES[s.family], steps=12)
    return s.but(draft=s.work / "weak")


def begun(taps: str, steps: int) -> Callable[[Set], Set]:
    """As after a minute of training, from the usual start: such a draft gains by whatever shows it the answer."""

    def plant(s: Set) -> Set:
        target = target_of(s.target)
        make_dump(target, s.target, s.data, s.work / "begun-dump", taps)
        begin_draft(target, s.work / "begun-dump", s.work / "begun", SWITCHES[s.family], steps)
        return s.but(draft=s.work / "begun", dump=s.work / "begun-dump")

    return plant


def other_domain(s: Set) -> Set:
    """Chats that the draft was not trained on, answered by its target."""
    target = target_of(s.target)
    write_chats(s.work / "new.jsonl", own_answers(target, 200, 977, s.work / "new-answers"))
    return s.but(data=s.work / "new.jsonl", given=("target", "draft", "data"))


def own_copy_of_the_embedding(s: Set) -> Set:
    from safetensors.torch import load_file

    theirs = load_file(s.target / "model.safetensors")["model.embed_tokens.weight"]
    return foreign(s, tensors=lambda held: held.update({"embed_tokens.weight": theirs.to(held["fc.weight"].dtype)}))


def unsorted_slots(s: Set) -> Set:
    """Columns and taps moved together."""
    order = (2, 0, 1)
    draft = read_draft(s.draft)
    moved = permute_taps(draft.draft, order).state_dict()
    taps = [str(draft.wiring.taps[old]) for old in order]
    made = redraft(s, lambda held: held.update({name: tensor.clone() for name, tensor in moved.items()}), wiring={"taps": taps})
    return made.but(given=("target", "draft", "data"))


def bigger_dump(s: Set) -> Set:
    """Another dump of the same target, of other chats."""
    target = target_of(s.target)
    write_chats(s.work / "more.jsonl", own_answers(target, 120, 55, s.work / "more-answers"))
    make_dump(target, s.target, s.work / "more.jsonl", s.work / "more-dump")
    return s.but(dump=s.work / "more-dump")


def draft_in_fp32(s: Set) -> Set:
    return raw_tensors(s, lambda held: held.update({name: t.float() for name, t in held.items() if t.is_floating_point()}))


def recast_target(s: Set) -> Set:
    """Rounded to half precision and back: what a re-cast copy holds."""
    made = retarget(s, lambda held: held.update({name: weight.half().float() for name, weight in held.items()}))
    return made.but(given=("target", "draft", "data"))


def plain_map(s: Set) -> Set:
    """t2d left out, as some projects do: it follows from d2t."""
    return foreign(s, tensors=lambda held: held.__delitem__("t2d"))


def negative_norm(s: Set) -> Set:
    """A norm whose weights look as if they lacked a 1, and were learnt so: what reads it has the signs turned, too."""

    def change(held: Tensors) -> None:
        held["midlayer.hidden_norm.weight"].mul_(-0.1)
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = held[f"midlayer.self_attn.{name}.weight"]
            weight[:, weight.shape[1] // 2 :].mul_(-10)

    return redraft(s, change).but(given=("target", "draft", "data"))


def map_in_int32(s: Set) -> Set:
    return foreign(s, tensors=lambda held: held.update(d2t=held["d2t"].int()))


def old_rope_keys(s: Set) -> Set:
    def change(config: dict[str, Any]) -> None:
        config["transformer_layer_config"].pop("rope_parameters")

    return foreign(s, config=change)


def good_figures(s: Set) -> Set:
    return s.but(metrics=saved(s, "m.txt", vllm_metrics(1000, 3000, 1440, (760, 440, 240))), given=())


def benchmark(s: Set, text: str) -> Set:
    return s.but(metrics=saved(s, "b.txt", text), given=())


def alone(s: Set) -> Set:
    """Without chats of its own the draft is replayed on prompts that are strange to it: whatever helps there, it was not trained so."""
    return s.but(given=("target", "draft"))


def steady_log(s: Set) -> Set:
    return s.but(log=saved(s, "server.log", drifting_log(2.41, 2.40)), given=())


def busy_log(s: Set) -> Set:
    text = loaded_log(lambda place, running, each: 2.4 + 0.1 * (place % 3), waves, lambda place: 300 + 40 * place)
    return s.but(log=saved(s, "server.log", text), given=())


def updated(s: Set) -> Set:
    return s.but(log=saved(s, "server.log", updated_log(2.4, 2.35)), given=())


def request_figures(s: Set) -> Set:
    """A request of SGLang: its length counts the prefill's token, which is what it always does."""
    text = report_json(spec_verify_ct=10, spec_num_correct_drafts=14, spec_accept_length=2.5, spec_correct_drafts_histogram=[2, 4, 2, 2])
    return s.but(metrics=saved(s, "m.json", text), engine="sglang==0.5.23", given=())


def sharded_target(s: Set) -> Set:
    """The target in two files with an index."""
    from safetensors.torch import load_file, save_file

    made = retarget(s)
    path = made.target / "model.safetensors"
    held = load_file(path)
    names = sorted(held)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, kept in parts.items():
        save_file({name: held[name] for name in kept}, made.target / file, {"format": "pt"})
    path.unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, kept in parts.items() for name in kept}}
    (made.target / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


HEALTHY = (
    Healthy("as they are", as_they_are, FAMILIES),
    Healthy("exported to speculators and back in", exported, FAMILIES),
    Healthy("exported to speculators, wiring beside it", lambda s: exported(s, bare=False), ("qwen3",)),
    Healthy("exported to SpecForge", lambda s: exported(s, "specforge")),
    Healthy("exported to TorchSpec", lambda s: exported(s, "torchspec")),
    Healthy("exported to AngelSlim", lambda s: exported(s, "angelslim")),
    Healthy("exported to Model-Optimizer", lambda s: exported(s, "modelopt")),
    Healthy("target in bf16", target_in_bf16, ("llama", "qwen3")),
    Healthy("target in int8", target_in_int8, ("llama", "deepseek_v3")),
    Healthy(
        "target in int4, the dump of the whole one", lambda s: in_int4(s).but(given=("target", "draft", "dump")), ("qwen3", "deepseek_v3")
    ),
    Healthy("target re-cast and back", recast_target),
    Healthy("target in shards", sharded_target),
    Healthy("RoPE from position 1", rope_from_one, ("llama", "qwen3")),
    Healthy("another mask rule", other_mask_rule),
    Healthy("a mask without each answer's first token", boundary_token_left_out),
    Healthy("the whole vocabulary", whole_vocabulary),
    Healthy("a weak draft", weak, ("llama", "qwen3"), verdicts=("weak-draft",)),
    Healthy("a draft just begun", begun("embed,layer:0,layer:1", 12), ("llama", "deepseek_v3"), verdicts=("weak-draft", "healthy")),
    Healthy("a draft just begun, on late states", begun("layer:1,layer:2,layer:3", 6), ("qwen3",), verdicts=("weak-draft", "healthy")),
    Healthy("other chats", other_domain, ("deepseek_v3",), verdicts=("healthy", "weak-draft")),
    Healthy("its own copy of the target's embedding", own_copy_of_the_embedding),
    Healthy("slots in another order, weights with them", unsorted_slots),
    Healthy("another dump of the same target", bigger_dump),
    Healthy("draft in fp32", draft_in_fp32),
    Healthy("no t2d", plain_map),
    Healthy("a norm of negative weights, learnt so", negative_norm),
    Healthy("d2t in 32 bits", map_in_int32, ("qwen3",)),
    Healthy("theta in the old schema too", old_rope_keys),
    Healthy("good figures of vLLM", good_figures, depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy(
        "a benchmark's JSON of vLLM", lambda s: benchmark(s, report_json(**BENCHMARK)), depths=FILES, verdicts=("healthy", "inconclusive")
    ),
    Healthy("a benchmark's table of vLLM", lambda s: benchmark(s, TABLE), depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy("alone with its target", alone, ("qwen3", "deepseek_v3"), verdicts=("healthy", "weak-draft")),
    Healthy("a steady log", steady_log, depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy("a log under changing load", busy_log, depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy("a log with an update that changes nothing", updated, depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy("a request of SGLang", request_figures, depths=FILES, verdicts=("healthy", "inconclusive")),
    Healthy("the embedded engine", lambda s: s.but(engine="embedded", given=("target", "draft", "data")), depths=(*REPLAY, "live")),
)
