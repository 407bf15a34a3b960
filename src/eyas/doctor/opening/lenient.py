"""The draft's config by all that is known: shapes first, then what the config states, then what lies beside it.

The strict readers refuse a draft that contradicts itself. A diagnosis needs it to run all the same, as an engine would.
"""

from __future__ import annotations

from typing import Any

import torch

from eyas.doctor.examination import Examination
from eyas.doctor.opening.draft import SWITCHES, DraftFiles
from eyas.doctor.opening.expected import mla_sizes, sidecar_config, vocabulary
from eyas.doctor.opening.plain import number, whole
from eyas.doctor.weights import ABSURD
from eyas.draft.config import DraftConfig, MlaConfig
from eyas.errors import UserError
from eyas.formats.rope import yarn_softmax_factor

_ATTENTION = "midlayer.self_attn."
_FEW_SPOILT = 0.001  # of a tensor's numbers


def lenient_config(exam: Examination) -> tuple[DraftConfig, list[str]]:
    """The config, and what had to be taken from elsewhere than config.json. Raises UserError if no draft has these settings."""
    files, tensors = exam.draft, exam.tensors
    assert files is not None
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    known = {**sidecar_config(files), **files.stated}
    notes: list[str] = []

    def size(name: str, shown: int | None, fallback: int | None = None) -> int:
        said = whole(known.get(name))
        if shown is not None and said not in (None, shown):
            notes.append(f"{name} is {shown} by the weights, and {said} by config.json")
        return shown or said or fallback or 1

    fc = shapes.get("fc.weight", (None, None))
    hidden = size("hidden_size", fc[0])
    width = whole(known.get("target_hidden_size")) or hidden
    theirs = exam.target.hidden_size if exam.target else None
    if theirs and fc[1] and (fc[1] % width or width != theirs) and fc[1] % theirs == 0:
        width = theirs
    mla = _mla(files, known)
    heads, groups, head_dim = _heads(shapes, known, hidden, mla)
    own, whole_ones = vocabulary(files)
    head = shapes.get("lm_head.weight")
    embedding = "embed_tokens.weight" in tensors
    vocab = (exam.target.vocab_size if exam.target else None) or whole_ones or own or 1
    config = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=width,
        num_taps=max(1, (fc[1] or width) // width),
        intermediate_size=size("intermediate_size", shapes.get("midlayer.mlp.gate_proj.weight", (None,))[0]),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        vocab_size=vocab,
        draft_vocab_size=(head[0] if head else None) or min(own or vocab, vocab),
        rope_parameters=rope_of(files, known),
        max_position_embeddings=max(1 << 14, whole(known.get("max_position_embeddings")) or 1),
        hidden_act=str(known.get("hidden_act", "silu")),
        rms_norm_eps=number(known.get("rms_norm_eps")) or 1e-6,
        mla=mla,
        own_embedding=embedding,
        lm_head_source=_head_source(files, known, embedding, bool(head), own == vocab or own is None),
        fc_bias="fc.bias" in tensors,
        attention_bias=_ATTENTION + "q_proj.bias" in tensors,
        mlp_bias="midlayer.mlp.gate_proj.bias" in tensors,
        qk_norm=_ATTENTION + "q_norm.weight" in tensors,
        **_switches(files, known, tensors),
    )
    config.check(str(files.folder / "config.json"))
    return config, notes


def _switches(files: DraftFiles, known: dict[str, Any], tensors: Any) -> dict[str, bool]:
    """As an engine takes them: what config.json does not state is off. A norm without its weights is off, too."""
    found = {name: files.stated.get(name) is True for name in SWITCHES}
    if files.dialect == "specforge" and "norm_output" in found:  # the word means another thing there
        found["norm_output"] = known.get("eyas_draft_format") is not None and sidecar_config(files).get("norm_output") is True
    found["norm_before_fc"] &= "input_norm.weight" in tensors
    found["fc_norm"] &= "fc_norm.0.weight" in tensors
    return found


def _heads(shapes: dict[str, Any], known: dict[str, Any], hidden: int, mla: MlaConfig | None) -> tuple[int, int, int]:
    heads = whole(known.get("num_attention_heads")) or 1
    if mla is not None:
        return heads, heads, mla.qk_head_dim
    query, key = shapes.get(_ATTENTION + "q_proj.weight"), shapes.get(_ATTENTION + "k_proj.weight")
    head_dim = whole(known.get("head_dim")) or max(1, hidden // heads)
    if query and key:
        if query[0] != heads * head_dim:
            head_dim = query[0] // heads if query[0] % heads == 0 and key[0] % (query[0] // heads) == 0 else head_dim
        if query[0] % head_dim or key[0] % head_dim:
            head_dim = next(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if query[0] % size == 0 and key[0] % size == 0)
        return max(1, query[0] // head_dim), max(1, key[0] // head_dim), head_dim
    return heads, whole(known.get("num_key_value_heads")) or heads, head_dim


def _mla(files: DraftFiles, known: dict[str, Any]) -> MlaConfig | None:
    sizes = mla_sizes(files)
    if sizes is None:
        return None
    beside = sidecar_config(files).get("mla")
    beside = beside if isinstance(beside, dict) else {}
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, nope, rope, value = (whole(sizes.get(name)) or whole(beside.get(name)) or 1 for name in names)
    query = files.weights_shape(_ATTENTION + "q_a_proj.weight")
    interleaved = sizes.get("rope_interleaved", sizes.get("rope_interleave", beside.get("rope_interleaved", True)))
    factor = number(sizes.get("softmax_factor")) or number(beside.get("softmax_factor")) or yarn_softmax_factor(rope_of(files, known))
    return MlaConfig(rank, nope, rope, value, query[0] if query else None, interleaved is not False, factor)


def rope_of(files: DraftFiles, known: dict[str, Any]) -> dict[str, Any]:
    """As transformers 5 keeps it; theta is 10000 where nothing names one, as in every engine."""
    layer = files.layer
    new = known.get("rope_parameters") or layer.get("rope_parameters")
    old = layer.get("rope_scaling")
    base = new if isinstance(new, dict) and new else old if isinstance(old, dict) else {}
    rope = {key: value for key, value in base.items() if key != "type"}
    rope["rope_type"] = str(base.get("rope_type", base.get("type", "default")))
    theta = number(base.get("rope_theta")) or number(layer.get("rope_theta")) or 10000.0
    return {**rope, "rope_theta": theta}


def _head_source(files: DraftFiles, known: dict[str, Any], embedding: bool, head: bool, full: bool) -> Any:
    if head or not full:
        return "draft"
    said = known.get("lm_head_source")
    if embedding and (said == "embedding" or files.layer.get("tie_word_embeddings") is True):
        return "embedding"
    return "target"


def stand_ins(exam: Examination, config: DraftConfig) -> tuple[dict[str, torch.Tensor], list[str]]:
    """All tensors that such a draft has; those that are missing as an engine would leave them. Returns notes on these.

    Single numbers that are none stand as 0. Raises UserError if a tensor has more of them, or a matrix of the layer is missing: such a
    draft says nothing in a replay.
    """
    from eyas.draft.checkpoint import wanted_shapes

    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    notes: list[str] = []
    missing = []
    for name, shape in wanted_shapes(config, "the draft's config").items():
        tensor = exam.tensors.get(name)
        if tensor is not None and tensor.shape == shape and name not in ("d2t", "t2d"):
            found[name] = _finite(name, tensor.float(), notes)
        elif name == "d2t":
            fits = tensor is not None and tensor.shape == shape
            found[name] = tensor.long() if fits and tensor is not None else torch.zeros(shape, dtype=torch.long)
        elif name != "t2d":
            if len(shape) == 2 and name.startswith(("fc.", "midlayer.")):
                raise UserError(f"{name} is missing or of another shape: what would stand in for it says nothing of the draft")
            missing.append(name)
            found[name] = torch.ones(shape) if len(shape) == 1 and "bias" not in name else 0.02 * torch.randn(shape, generator=generator)
    ids = (found["d2t"] + torch.arange(len(found["d2t"]))).clamp(0, config.vocab_size - 1)
    found["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    notes += [f"{name} is missing or of another shape; it is replayed as an engine would initialise it" for name in missing]
    return found, notes


def _finite(name: str, tensor: torch.Tensor, notes: list[str]) -> torch.Tensor:
    spoilt = ~(tensor.abs() <= ABSURD)  # NaN is not below either
    bad = int(spoilt.sum())
    if bad == 0:
        return tensor
    if bad > max(1, _FEW_SPOILT * tensor.numel()):
        places = f"{bad} of {tensor.numel()} places"
        raise UserError(f"{name} holds NaN, infinity or absurd values in {places}: nothing that it gives can be judged")
    notes.append(f"{name} holds NaN, infinity or absurd values in {bad} places; it is replayed with 0 there")
    return tensor.masked_fill(spoilt, 0.0)
