"""The target, whole; or its embedding, final norm and head alone, tensor by tensor from its shards.

A target of a trillion weights need not be loaded to be diagnosed: with a dump at hand, three of its parts are enough.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from eyas.doctor.opening.target import EMBEDDINGS, HEADS
from eyas.errors import UserError, WeightsError
from eyas.targets.families import family_of, resolve
from eyas.targets.loading import load_config, load_target, load_tokenizer, tokenizer_hash
from eyas.targets.target import Target

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_LARGEST = 24 << 30  # bytes of weights beyond which a target is not loaded whole to be diagnosed
_ITEM = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}


def load_whole(exam: Examination) -> Target | None:
    """In fp32, if its layers are there and small enough. The reason why not is left in `exam.why_no_target`; `exam.target_unfit` says
    whether it is that the weights are damaged or do not fit their config.
    """
    exhibits, files = exam.exhibits, exam.target
    if exhibits.target is None:
        return None
    if files is not None and not files.layers_there:
        exam.why_no_target = "the weights of the target's layers are not all there"
        return None
    if files is not None:
        count = sum(_numel(info.shape) * _ITEM.get(info.dtype, 1) for info in files.weights.tensors.values())
        if count > _LARGEST:
            exam.why_no_target = f"the target's weights take {count / 1e9:.0f} GB: it is examined by its parts and the dump"
            return None
    try:
        return load_target(
            exhibits.target, device=torch.device("cpu"), dtype=torch.float32, trust_remote_code=exhibits.trust_remote_code, fast=False
        )
    except UserError as error:
        exam.why_no_target = " ".join(str(error).split())
        exam.target_unfit = isinstance(error, WeightsError)
        return None


def load_parts(exam: Examination) -> Target | None:
    """A target whose layers are empty; None if its config or one of the parts cannot be had."""
    files = exam.target
    if files is None or exam.exhibits.target is None:
        return None
    try:
        config = load_config(str(files.folder), exam.exhibits.trust_remote_code)
        family = family_of(config.model_type)
        model = _hollow(config, family.backbone, exam.exhibits.trust_remote_code)
        tokenizer = _tokenizer(exam)
        target = Target(
            name=files.folder.name,
            model=model,
            tokenizer=tokenizer,
            family=family,
            device=torch.device("cpu"),
            dtype=torch.float32,
            tokenizer_hash=tokenizer_hash(tokenizer) if tokenizer is not None else "",
            chat_template_hash=None,
            stop_ids=(),
        )
        _fill(exam, target)
    except UserError as error:
        exam.why_no_bench = f"the target's embedding, norm and head cannot be read: {' '.join(str(error).split())}"
        return None
    return target


def _hollow(config: Any, backbone: str, trust_remote_code: bool) -> Any:
    """The family's own model with one layer and no memory: its embedding, norm and head compute as they do in the whole."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    small = copy.deepcopy(config)
    text = small.get_text_config(decoder=True)
    text.num_hidden_layers = 1
    if isinstance(getattr(text, "layer_types", None), list):
        text.layer_types = text.layer_types[:1]
    loader = AutoModelForImageTextToText if backbone.endswith("language_model") else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = loader.from_config(small, dtype=torch.float32, trust_remote_code=trust_remote_code)
    except Exception as error:  # a config may say anything
        raise UserError("no model can be made of the target's config", got=f"{type(error).__name__}: {error}"[:200]) from error
    model.config = config
    return model.eval()


def _fill(exam: Examination, target: Target) -> None:
    """Put the tensors of embedding, norm and head in place of the empty ones."""
    files = exam.target
    assert files is not None
    embedding, head = files.find(EMBEDDINGS), files.find(HEADS)
    tied = files.tied if files.tied is not None else getattr(target.config, "tie_word_embeddings", False)
    if embedding is None or (head is None and not tied):
        raise UserError("the target's embedding or head is not found", got=f"embedding {embedding}, head {head}")
    stem = embedding.rsplit(".", 2)[0]
    for module, prefix in (
        (target.embed, embedding),
        (target.norm, f"{stem}.{target.family.norm}.weight"),
        (target.lm_head, head or embedding),
    ):
        names = {name.rsplit(".", 1)[1]: name for name in files.weights.tensors if name.rsplit(".", 1)[0] == prefix.rsplit(".", 1)[0]}
        for part, parameter in list(module.named_parameters(recurse=False)):
            if part not in names:
                raise UserError("a part of the target is missing", got=f"{prefix.rsplit('.', 1)[0]}.{part}")
            tensor = _tensor(exam, names[part]).float()
            if tensor.shape != parameter.shape:
                raise UserError(
                    "a part of the target has another shape than its config says", got=list(tensor.shape), allowed=list(parameter.shape)
                )
            setattr(module, part, torch.nn.Parameter(tensor, requires_grad=False))
        for part, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:  # a scale that the family works out when the module is made
                scale = getattr(module, "scalar_embed_scale", None)
                setattr(module, part, torch.tensor(scale if scale is not None else target.hidden_size**0.5))
    resolve(target.model, target.family.lm_head, "lm_head")


def _tensor(exam: Examination, name: str) -> torch.Tensor:
    files = exam.target
    assert files is not None
    path = files.folder / files.weights.tensors[name].file
    try:
        with safe_open(path, framework="pt") as opened:
            return opened.get_tensor(name)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise UserError(f"{path.name} is damaged", got=str(error).splitlines()[0]) from error


def _tokenizer(exam: Examination) -> Any:
    assert exam.target is not None
    try:
        return load_tokenizer(str(exam.target.folder), exam.exhibits.trust_remote_code)
    except UserError:
        return None


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for part in shape:
        count *= part
    return count
