"""A draft as a checkpoint for one engine and version: planned, put in the engine's order, proved equal, written.

The checkpoint is flat, with tensors under `midlayer.`, which every version of both engines reads. What an engine shares
from the target is left out, and what it would otherwise share wrongly is written.
"""

from __future__ import annotations

import copy
import dataclasses
import shlex
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from eyas.draft.checkpoint import LoadedDraft, filled, read_draft
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.permute import permute_taps
from eyas.engines.catalog import parse_engine
from eyas.engines.draft_facts import DraftFacts
from eyas.engines.plan import Plan, plan
from eyas.engines.rows import Judged
from eyas.engines.target_facts import TargetFacts
from eyas.errors import UserError
from eyas.formats.exporting import export_loaded
from eyas.formats.report import ConfigChanges, ExportReport
from eyas.taps import format_taps
from eyas.wiring import Wiring

_LAYOUT = "torchspec"  # flat, `midlayer.`, and no map of a full vocabulary, which vLLM does not load since 0.30
# vLLM takes a draft of type deepseek_v3 for an MTP layer, and finds no MLA in one of type kimi_k2.
_MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "mla": "deepseek_v2"}
_THETA_IN_SCALING_UNTIL = Version("0.28")  # vLLM's MLA head read nothing but rope_scaling
_PROOF_ROWS = 6


class Unreachable(UserError):
    """The engine cannot feed the draft what it was trained on: an answer, not a mistake of the user's. `notes` say why."""

    def __init__(self, name: str, notes: tuple[str, ...], wiring: Wiring) -> None:
        super().__init__(
            f"{name} cannot feed this draft what it was trained on",
            got="\n           ".join(notes),
            remedy="eyas wiring translate tells what another engine or version makes of it",
        )
        self.notes, self.wiring = notes, wiring


def export_for_engine(draft_folder: Path, engine: str, version: str, target_folder: Path, out: Path) -> ExportReport:
    """Write the draft to `out` as the engine at that version needs it; an earlier export there is replaced.

    Raises:
        UserError: no such draft, engine or target.
        Unreachable: the engine cannot feed this draft what it was trained on; nothing is written.
    """
    judged = parse_engine(f"{engine}=={version}")
    loaded, facts = read_draft(draft_folder), DraftFacts.read(draft_folder)
    found = plan(loaded.wiring, judged, TargetFacts.read(target_folder), facts, str(out))
    if not found.reachable:
        raise Unreachable(judged.name, found.notes, loaded.wiring)
    draft, notes = loaded.draft, list(found.notes)
    if draft.config.lm_head_source == "embedding":
        draft = untied(draft)
        notes.append("lm_head is tied to the draft's embedding; it is written out, as engines would take the target's")
    if found.moves_slots:
        error = prove_permutation(draft, found.permutation)
        draft = permute_taps(draft, found.permutation)
        notes.append(f"slots permuted to {format_taps(found.taps)}; with scaled norms both give the same outputs (difference {error:.1e})")
    moved = LoadedDraft(draft, loaded.wiring.replace(taps=found.taps), loaded.name, loaded.trace_file)
    report = export_loaded(moved, _LAYOUT, out, changes=changes_for(judged, found, draft.config, facts))
    return ExportReport(report.written, moved.wiring, report.assumed, [*notes, f"launch with: {shlex.join(found.flags)}"])


def changes_for(judged: Judged, found: Plan, config: DraftConfig, facts: DraftFacts) -> ConfigChanges:
    """What the engine wants in config.json beside the layout's own keys."""
    head = judged.head(facts.kind)
    assert head is not None, "a plan without a head is not reachable"
    top: dict[str, Any] = {key: value for key, value in found.config.items() if key != "eagle_config"}
    top |= {"architectures": [head.architecture], "model_type": _MODEL_TYPES[facts.kind]}
    if judged.engine.name == "sglang" and config.lm_head_source == "target":
        top["draft_vocab_size"] = None  # with a number there it would keep a random head of its own
    if facts.kind == "mla" and judged.engine.name == "vllm" and judged.version < _THETA_IN_SCALING_UNTIL:
        top["rope_scaling"] = {**config.rope_parameters, "type": config.rope_parameters["rope_type"]}
    # Absent means off to every engine, and the word means something else to SpecForge, which writes this layout.
    removed = () if config.norm_output else ("norm_output",)
    return ConfigChanges(top=top, eagle_config=found.config["eagle_config"], removed=removed)


def untied(draft: Eagle3Draft) -> Eagle3Draft:
    """The same draft with the rows of its embedding written out as an lm_head."""
    config = dataclasses.replace(draft.config, lm_head_source="draft")
    tensors = dict(draft.state_dict())
    return filled(config, {**tensors, "lm_head.weight": tensors["embed_tokens.weight"].clone()}).eval().requires_grad_(False)


def prove_permutation(draft: Eagle3Draft, order: tuple[int, ...]) -> float:
    """The largest relative difference between the draft and the permuted one over one step on random states, in fp32.

    Norm weights are drawn at random first: those of a draft may all be near 1, and would then hide a norm left behind.
    """
    generator = torch.Generator().manual_seed(0)
    probe = copy.deepcopy(draft).float()
    for name, weight in probe.named_parameters():
        if name.startswith(("input_norm", "fc_norm")):
            weight.data.mul_(torch.rand(weight.shape, generator=generator) + 0.5)
    config = draft.config
    states_1TS = torch.randn(1, _PROOF_ROWS, config.num_taps * config.target_hidden_size, generator=generator)
    blocks = states_1TS.chunk(config.num_taps, dim=-1)
    embedded_1TH = torch.randn(1, _PROOF_ROWS, config.hidden_size, generator=generator)
    expected = _step(probe, states_1TS, embedded_1TH)
    moved = _step(permute_taps(probe, order), torch.cat([blocks[old] for old in order], dim=-1), embedded_1TH)
    error = float((moved - expected).norm() / expected.norm())
    assert error < 1e-4, f"the permuted draft is another one: relative difference {error}"
    return error


@torch.no_grad()
def _step(draft: Eagle3Draft, states_1TS: torch.Tensor, embedded_1TH: torch.Tensor) -> torch.Tensor:
    """The state that a draft feeds back [1, T, H], every row seeing all rows before it."""
    layer, positions = draft.midlayer, torch.arange(states_1TS.shape[1])[None]
    both, residual = layer.inputs(embedded_1TH, draft.fuse(states_1TS))
    rotation = layer.rotation(positions, both)
    keys, values = layer.key_value(both, rotation)
    query = layer.query(both, rotation)
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    attended = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    return draft.feedback(layer.output(attended, residual))
