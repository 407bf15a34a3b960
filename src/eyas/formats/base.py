"""What a format is: a key table, a way to read and to write its config, and what its project's own code can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eyas.draft.config import DraftConfig
from eyas.formats.ids import Meaning, default_boundaries
from eyas.formats.reading import Reading
from eyas.wiring import Wiring

HEAD_KEYS = ("lm_head.weight", "d2t", "t2d")  # never below a format's root
# What a draft may have beyond the plainest one, in words.
FEATURES = {
    "mla": "an MLA head",
    "norm_before_fc": "norm_before_fc",
    "fc_norm": "fc_norm",
    "norm_before_residual": "norm_before_residual",
    "norm_output": "norm_output",
    "own width": "a draft of another width than the target",
    "tied head": "an lm_head tied to the embedding",
    "target head": "the target's own lm_head",
    "taps": "another number of states than 3",
    "fc_bias": "a bias of fc",
    "attention_bias": "biases in attention",
    "mlp_bias": "biases in the MLP",
    "qk_norm": "norms of queries and keys",
}


@dataclass(frozen=True)
class Source:
    """A checkpoint to read a config from: config.json, and the shapes of its tensors under Eyas's names."""

    config: Mapping[str, Any]
    shapes: Mapping[str, torch.Size]
    layer_prefix: str
    where: str


@dataclass(frozen=True)
class Format:
    """One project's checkpoints.

    `root` stands before all keys but `HEAD_KEYS`; `layers` are the prefixes of the draft's layer that its writers use,
    the first of which is written. `ids_mean` is None where no ids are kept. `runs` are the `FEATURES` that the project's
    own code knows. `fixed_taps`: its code captures the default states, whatever a config says. `refuse` names what a config of
    this format cannot have, `warn` says what else its project would do otherwise than Eyas.
    """

    name: str
    title: str
    layers: tuple[str, ...]
    ids_mean: Meaning | None
    runs: frozenset[str]
    read: Callable[[Source], Reading]
    write: Callable[[DraftConfig, Wiring, str], dict[str, Any]]
    root: str = ""
    keeps_full_maps: bool = False
    keeps_t2d: bool = True
    fixed_taps: bool = False
    default_taps: Callable[[Mapping[str, Any], int], tuple[int, ...]] = lambda config, num_layers: default_boundaries(num_layers)
    meaning_here: Callable[[Source], tuple[Meaning, str] | None] = lambda source: None
    refuse: Callable[[DraftConfig], str | None] = lambda config: None
    warn: Callable[[DraftConfig], list[str]] = lambda config: []

    def key(self, name: str) -> str:
        """This format's key for one of Eyas's tensor names."""
        if name in HEAD_KEYS:
            return name
        return self.root + (self.layers[0] + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name)

    def eyas_name(self, key: str) -> str | None:
        """Eyas's name for one of this format's keys; None for a key that the table has not."""
        if key in HEAD_KEYS:
            return key
        if not key.startswith(self.root):
            return None
        rest = key.removeprefix(self.root)
        for prefix in self.layers:
            if rest.startswith(prefix):
                return "midlayer." + rest.removeprefix(prefix)
        return None if rest.startswith(("midlayer.", "layers.")) else rest


def architectures_of(config: Mapping[str, Any]) -> set[str]:
    """The names of classes in a config; none where it holds something else."""
    names = config.get("architectures")
    return {str(name) for name in names} if isinstance(names, list) else set()


def features_of(config: DraftConfig) -> set[str]:
    """Which of `FEATURES` a draft has."""
    flags = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output", "fc_bias", "attention_bias", "mlp_bias", "qk_norm")
    found = {name for name in flags if getattr(config, name)}
    others = {
        "mla": config.mla is not None,
        "own width": config.hidden_size != config.target_hidden_size,
        "tied head": config.lm_head_source == "embedding",
        "target head": config.lm_head_source == "target",
        "taps": config.num_taps != 3,
    }
    return found | {name for name, has in others.items() if has}
