"""The draft as it is replayed: config, tensors, and what it is fed. A fix is another subject."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.taps import Tap
from eyas.targets.target import Target


@dataclass(frozen=True, eq=False)
class Subject:
    """Row p reads the state of p - `shift` and the token of p + 1 + `ahead`. `normed`: slots behind the target's final norm."""

    config: DraftConfig
    tensors: Mapping[str, torch.Tensor]
    taps: tuple[Tap, ...]
    shift: int = 0
    ahead: int = 0
    normed: frozenset[int] = frozenset()

    def configured(self, **changes: Any) -> Subject:
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))

    def having(self, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Subject:
        """With some tensors in the place of others, and another config if need be."""
        config = dataclasses.replace(self.config, **changes)
        return dataclasses.replace(self, config=config, tensors={**self.tensors, **tensors})

    def without(self, *names: str, **changes: Any) -> Subject:
        kept = {name: tensor for name, tensor in self.tensors.items() if name not in names}
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes), tensors=kept)

    def mapped(self, ids: torch.Tensor) -> Subject:
        """With row i of lm_head meaning target id ids[i]."""
        t2d = torch.zeros(self.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
        return self.having({"d2t": ids - torch.arange(len(ids)), "t2d": t2d})

    def rising(self) -> Subject:
        """The same draft with the rows of its head in the order of their ids, as engines have them."""
        order = self.ids.argsort(stable=True)
        if self.config.lm_head_source != "draft" or bool((order[1:] > order[:-1]).all()):
            return self
        ids = self.ids[order]
        return self.having({"lm_head.weight": self.tensors["lm_head.weight"][order], "d2t": ids - torch.arange(len(ids))})

    @property
    def ids(self) -> torch.Tensor:
        """The target ids that the rows of lm_head are said to mean; they may lie out of range."""
        return self.tensors["d2t"] + torch.arange(len(self.tensors["d2t"]))

    def build(self, target: Target) -> Eagle3Draft:
        """The module, on the target's embedding and head where it has none of its own."""
        with torch.device("meta"):
            draft = Eagle3Draft(self.config)
        wanted = draft.state_dict().keys()
        draft.load_state_dict({name: tensor for name, tensor in self.tensors.items() if name in wanted}, assign=True)
        draft.midlayer.rope = LlamaRotaryEmbedding(self.config.layer_config())  # its frequencies are no part of the state
        draft.eval().requires_grad_(False)
        draft.use_target(target)
        return draft


def changed(left: Subject, right: Subject) -> set[str]:
    """Names of all that differs: of the subject, of its config, of its tensors."""
    found = {name for name in _FED if getattr(left, name) != getattr(right, name)}
    fields = [item.name for item in dataclasses.fields(DraftConfig)]
    found |= {f"config.{name}" for name in fields if getattr(left.config, name) != getattr(right.config, name)}
    names = {*left.tensors, *right.tensors}
    return found | {f"tensor {name}" for name in names if left.tensors.get(name) is not right.tensors.get(name)}


_FED = ("taps", "shift", "ahead", "normed")


def reverted(final: Subject, before: Subject, after: Subject) -> Subject:
    """`final` without the change that made `after` of `before`, as far as nothing later changed the same once more."""
    changes = {name: getattr(before, name) for name in _FED if getattr(before, name) != getattr(after, name) == getattr(final, name)}
    fields = [item.name for item in dataclasses.fields(DraftConfig)]
    old, new, now = before.config, after.config, final.config
    config = {name: getattr(old, name) for name in fields if getattr(old, name) != getattr(new, name) == getattr(now, name)}
    tensors = dict(final.tensors)
    for name in {*before.tensors, *after.tensors}:
        was, became = before.tensors.get(name), after.tensors.get(name)
        if was is not became and tensors.get(name) is became:
            tensors.pop(name, None)
            if was is not None:
                tensors[name] = was
    return dataclasses.replace(final, config=dataclasses.replace(now, **config), tensors=tensors, **changes)
