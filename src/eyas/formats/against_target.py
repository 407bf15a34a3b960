"""A draft's embedding and head held against the target's, number by number, without loading the target as a model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from eyas.draft.model import Eagle3Draft
from eyas.errors import UserError
from eyas.files import read_weight_map

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")


def compare_with_target(draft: Eagle3Draft, target: Path) -> list[str]:
    """A line on the embedding and one on the head, as far as the draft has its own and the target's lie in safetensors files."""
    lines = []
    if draft.config.own_embedding:
        lines.append(_line("the draft's embedding", draft.embed_tokens.weight, _find(target, _EMBEDDINGS), _ON_EMBEDDING))
    if draft.config.lm_head_source == "draft":
        rows = draft.to_target(torch.arange(draft.config.draft_vocab_size))
        head = _find(target, _HEADS)
        head = _find(target, _EMBEDDINGS) if head is None else head  # tied, and stored once
        lines.append(
            _line("the draft's lm_head", draft.lm_head.weight, None if head is None or len(head) <= int(rows.max()) else head[rows], "")
        )
    return lines


_ON_EMBEDDING = "; SGLang puts the target's in its place all the same"


def _line(what: str, mine: torch.Tensor, theirs: torch.Tensor | None, consequence: str) -> str:
    if theirs is None:
        return f"{what} was not compared with the target's: it is not found in safetensors files there"
    if mine.shape != theirs.shape:
        return f"{what} is of another shape than the target's: {list(mine.shape)} and {list(theirs.shape)}"
    if torch.equal(mine, theirs.to(mine.dtype)):
        return f"{what} equals the target's"
    cosine = torch.nn.functional.cosine_similarity(mine.float(), theirs.float(), dim=-1).mean()
    return f"{what} is not the target's (mean cosine of its rows {float(cosine):.3f}){consequence}"


def _find(folder: Path, endings: tuple[str, ...]) -> torch.Tensor | None:
    """The one tensor whose name ends so, or None. Raises UserError if its file is damaged."""
    index = folder / "model.safetensors.index.json"
    files = {folder / file for file in read_weight_map(index).values()} if index.is_file() else set(folder.glob("*.safetensors"))
    found = []
    for file in sorted(files):
        try:
            with safe_open(file, framework="pt") as opened:
                found += [opened.get_tensor(name) for name in opened.keys() if name.endswith(endings)]  # noqa: SIM118
        except Exception as error:
            raise UserError(f"{file} is missing or damaged", got=str(error).splitlines()[0][:200]) from error
    return found[0] if len(found) == 1 else None
