"""Made targets: architectures of the largest models at true depth and narrow width, taught to say something.

They stand in for models that no small machine runs: routed experts, latent attention, sparse attention, the multimodal
wrapper. Each is taught the village of `made_text` and must pass the gates of `gates` before its folder exists.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from eyas.errors import UserError
from eyas.files import atomic_folder, write_text
from eyas.progress import Progress, console
from eyas.targets.catalog import MADE_SUMMARIES
from eyas.targets.families import Family, family_of, resolve
from eyas.targets.gates import Gates, measure_gates
from eyas.targets.kimi import KIMI_ROPE, kimi_config
from eyas.targets.loading import auto_class, load_target
from eyas.targets.made_text import made_chats
from eyas.targets.small_tokenizer import learn_tokenizer, small_tokenizer
from eyas.targets.teach import Chats, Teaching, teach
from eyas.targets.tiny import save_target

TRAIN_CHATS, HELD_OUT_CHATS = "chats-train.jsonl", "chats-heldout.jsonl"
_NUM_TRAIN_CHATS, _NUM_HELD_OUT_CHATS, _NUM_GATE_CHATS = 1200, 120, 64
_TEACHING_SEED, _CHATS_SEED = 1, 2  # of the generated text: what comes along is not what the target was taught with

_COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "max_position_embeddings": 2048,
    "rope_parameters": KIMI_ROPE | {"rope_theta": 10000.0},
    "initializer_range": 0.1,  # near 1 / sqrt(hidden_size): at such a width the usual 0.02 would learn nothing for long
    "tie_word_embeddings": False,
}
_KIMI = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "num_mtp_layers": 0}
# Sixteen heads keep an indexer's score of exactly zero in all of them rare: of keys that tie for the last place any may be picked.
_V32 = {"first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 16}
# Scales at the start, times initializer_range. At equal ones the first layer of so narrow a model drowns the embedding, and of
# sixty layers the last two hardly matter: a teacher taken two layers too early would be no fault.
_EMBEDDING, _FIRST_LAYER = 10.0, 0.25
_WRITES = ("o_proj.weight", "down_proj.weight", "experts.down_proj")  # what a layer adds to the residual stream passes through these
_DEEP = {"num_hidden_layers": 61, "num_experts_per_tok": 8, "moe_intermediate_size": 16}
_SHALLOW = {"num_hidden_layers": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "n_routed_experts": 32}


@dataclass(frozen=True)
class Recipe:
    """`settings` are those of the text model's config; what it is in words is `summary`. `last_layer` is the scale at the start of
    what the last layer writes."""

    family: str
    summary: str
    settings: Mapping[str, Any]
    teaching: Teaching
    last_layer: float = 1.5


_LONG, _SHORT = Teaching(num_steps=300, batch_size=8, learning_rate=2e-3), Teaching(num_steps=300, batch_size=8, learning_rate=4e-3)
RECIPES: dict[str, tuple[Recipe, Recipe]] = {  # at full size and small
    "kimi-tiny": (
        Recipe("kimi_k25", MADE_SUMMARIES["kimi-tiny"], _COMMON | _KIMI | _DEEP | {"n_routed_experts": 384}, _LONG),
        Recipe("kimi_k25", "Kimi-K2.5's kind: 12 layers, MLA, 32 experts top-4", _COMMON | _KIMI | _SHALLOW, _SHORT),
    ),
    "dsv32-tiny": (
        Recipe(
            "deepseek_v32",
            MADE_SUMMARIES["dsv32-tiny"],
            _COMMON | _V32 | _DEEP | {"n_routed_experts": 256, "n_group": 8, "topk_group": 4},
            _LONG,
            last_layer=5.0,  # at 1.5 it learns to have its answer ready two layers early, in nine of ten places
        ),
        Recipe(
            "deepseek_v32",
            "DeepSeek-V3.2's kind: 12 layers, MLA with sparse attention to 16 positions, 32 experts top-4",
            _COMMON | _V32 | _SHALLOW | {"n_group": 4, "topk_group": 2},
            _SHORT,
        ),
    ),
}
MADE = tuple(RECIPES)


class GatesFailedError(Exception):
    """What was taught is not good enough to stand in for a target; nothing was published."""

    def __init__(self, gates: Gates) -> None:
        super().__init__("; ".join(gates.failures()))
        self.gates = gates


@dataclass(frozen=True)
class MadeReport:
    num_parameters: int
    seconds: float
    gates: Gates


def make_target(name: str, folder: Path, *, small: bool = False, seed: int = 0) -> MadeReport:
    """Teach the named target and write it to `folder`, with its card and chats of its language.

    Raises:
        UserError: an unknown name, a seed out of range, a folder in use.
        GatesFailedError: it has not learnt enough, or its states say too little.
    """
    if name not in RECIPES:
        raise UserError("no made target of this name", got=name, allowed=", ".join(MADE))
    if not -(2**63) <= seed < 2**63:
        raise UserError("--seed is out of range", got=seed, allowed="-2^63 to 2^63 - 1")
    recipe = RECIPES[name][small]
    started = time.perf_counter()
    with atomic_folder(folder) as out, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        num_parameters = _teach_and_save(recipe, seed, out)
        console.print("loading what was saved, and measuring it", highlight=False)
        target = load_target(str(out), device=torch.device("cpu"), dtype=torch.float32)
        gates = measure_gates(target, made_chats(_NUM_GATE_CHATS, _CHATS_SEED + 1, held_out=True))
        if not gates.passed:
            raise GatesFailedError(gates)
        _write_chats(out / TRAIN_CHATS, made_chats(_NUM_TRAIN_CHATS, _CHATS_SEED, held_out=False), "train")
        _write_chats(out / HELD_OUT_CHATS, made_chats(_NUM_HELD_OUT_CHATS, _CHATS_SEED, held_out=True), "heldout")
        write_text(out / "README.md", card(name, recipe, num_parameters, seed, gates))
    return MadeReport(num_parameters, time.perf_counter() - started, gates)


def _teach_and_save(recipe: Recipe, seed: int, out: Path) -> int:
    tokenizer = made_tokenizer()
    model = auto_class(recipe.family).from_config(_config(recipe, tokenizer), dtype=torch.float32)
    _set_scales(model, family_of(recipe.family), recipe.last_layer)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    teaching = recipe.teaching
    chats = made_chats(teaching.num_steps * teaching.batch_size, _TEACHING_SEED, held_out=False)
    with Progress(f"teaching {num_parameters / 1e6:.1f} M weights", teaching.num_steps, "steps") as progress:
        teach(model, tokenizer, chats, teaching, seed, lambda loss: progress.advance(1, f"loss {loss:.3f}"))
    save_target(model, tokenizer, out, published_layout=False)
    return num_parameters


@torch.no_grad()
def _set_scales(model: Any, family: Family, last_layer: float) -> None:
    """Embeddings of unit size, and layers that write more the deeper they stand, as in large models."""
    backbone = resolve(model, family.backbone, "the text backbone")
    resolve(backbone, family.embed, "the embedding").weight.mul_(_EMBEDDING)
    layers = resolve(backbone, family.layers, "the decoder layers")
    growth = (last_layer / _FIRST_LAYER) ** (1 / (len(layers) - 1))
    for depth, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if name.endswith(_WRITES):
                parameter.mul_(_FIRST_LAYER * growth**depth)


def _write_chats(file: Path, chats: Chats, part: str) -> None:
    write_text(file, "".join(json.dumps({"id": f"{part}-{number}", "messages": chat}) + "\n" for number, chat in enumerate(chats)))


@functools.cache
def _learnt_from_made_text() -> str:
    return learn_tokenizer(message["content"] for chat in made_chats(800, seed=0, held_out=False) for message in chat)


def made_tokenizer() -> Any:
    return small_tokenizer(_learnt_from_made_text())


def _config(recipe: Recipe, tokenizer: Any) -> Any:
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    settings = {**recipe.settings, **ids}
    if recipe.family == "kimi_k25":
        return kimi_config(settings, tokenizer.pad_token_id)
    return AutoConfig.for_model(recipe.family, **settings)


def card(name: str, recipe: Recipe, num_parameters: int, seed: int, gates: Gates) -> str:
    """The README.md of the folder."""
    layers = recipe.settings["num_hidden_layers"]
    taps = f"embed,layer:{round(2 * layers / 61)},layer:{layers // 2}"
    return f"""\
---
license: apache-2.0
---
# {name}

{recipe.summary}; {num_parameters / 1e6:.1f} M weights, made by Eyas (`eyas model make {name}`, seed {seed}). It was taught a generated
language of about a hundred words and knows nothing else. It stands in for models that are too large to try things on.

| gate | measured | wanted |
| --- | --- | --- |
{gates.table()}

`{TRAIN_CHATS}` and `{HELD_OUT_CHATS}` hold chats in its language. No question of the latter was taught. What comes first:

```sh
eyas data regenerate --target . --chats {TRAIN_CHATS} --out ../answered.jsonl --dtype fp32
eyas data prepare --target . --chats ../answered.jsonl --out ../prepared
eyas capture --target . --data ../prepared --taps {taps} --out ../dump --dtype fp32
eyas train --target . --dump ../dump --out ../draft --steps 300 --dtype fp32
eyas evaluate --target . --draft ../draft --chats {HELD_OUT_CHATS} --dtype fp32
```

The weights are stored as transformers computes with them (experts stacked), which loads quickly.{_text_only(recipe)}
"""


def _text_only(recipe: Recipe) -> str:
    if recipe.family != "kimi_k25":
        return ""
    return """ The text model alone:

```python
config = AutoConfig.from_pretrained(".").text_config
model = DeepseekV3ForCausalLM.from_pretrained(".", config=config, key_mapping={r"^model\\.language_model\\.": "model."})
```"""
