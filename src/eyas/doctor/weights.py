"""What weights show by themselves and beside the target's: norms, constants, noise, RoPE tables, embedding and head."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, percent, ruled_out, suspected, untestable
from eyas.doctor.opening.headers import FLOATS
from eyas.doctor.opening.tensors import pickled_tensors

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination
    from eyas.targets.target import Target

_SAMPLED = 1 << 22  # numbers of a tensor that are looked at
ABSURD = 1e4
_THE_SAME = 0.9999  # mean cosine of rows
_HANDFUL, _ENOUGH = 16, 1024  # different numbers, of so many at least
# What else a tensor with such numbers seems to be, by a part of its name.
_SEEMS = {"norm": ("norm-convention",), "lm_head": ("map-other", "head-foreign"), "embed_tokens": ("embedding-foreign",)}
_RESTORE = "restore this tensor from the checkpoint that was trained"


def norm_means(exam: Examination) -> dict[str, float]:
    """The mean weight of every norm but those of heads, which may lie anywhere."""
    found = {}
    for name, tensor in exam.tensors.items():
        norm = tensor.ndim == 1 and tensor.is_floating_point() and ("norm" in name) and ".self_attn." not in name
        if norm and bool(torch.isfinite(tensor.float()).all()):
            found[name] = float(tensor.float().mean())
    return found


def finite(exam: Examination) -> Outcome:
    problems = []
    for name, tensor in exam.tensors.items():
        if not tensor.is_floating_point():
            continue
        values = tensor.float()
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            problems.append(Evidence(f"{name} holds NaN or infinity in {bad} of {values.numel()} places", {"tensor": name, "places": bad}))
        elif values.numel() and float(values.abs().max()) > ABSURD:
            problems.append(
                Evidence(f"{name} reaches {float(values.abs().max()):.3g}: half precision overflows at 65504", {"tensor": name})
            )
    if problems:
        remedy = "the training diverged or a cast overflowed: go back to a checkpoint before, or export in bf16"
        spoilt = {str(item.numbers["tensor"]) for item in problems}
        covers = ("weights-untrained", *(code for part, codes in _SEEMS.items() if any(part in name for name in spoilt) for code in codes))
        return confirmed(Fault("weights-not-finite", "draft", tuple(problems[:4]), remedy, 0.93, covers=covers))
    return ruled_out(f"all {len(exam.tensors)} tensors are finite and of usual size")


def untrained(exam: Examination) -> Outcome:
    """Constants and zeros; equal rows; few different numbers; fresh noise is told by the comparison with the target."""
    problems = []
    means = sorted(norm_means(exam).values())
    usual = means[len(means) // 2] if means else 0.0
    for name, tensor in exam.tensors.items():
        if name in ("d2t", "t2d") or not tensor.is_floating_point() or tensor.numel() < 2:
            continue
        values = tensor.float().flatten()[:_SAMPLED]
        if not bool(torch.isfinite(values).all()):
            continue
        spread, mean = float(values.std()), float(values.abs().mean())
        if tensor.ndim >= 2 and spread == 0.0:
            problems.append(Evidence(f"every number of {name} is {float(values[0]):g}", {"tensor": name}))
        elif tensor.ndim == 1 and mean == 0.0 and "norm" in name and usual > 0.5:  # else all are stored as differences from 1
            problems.append(Evidence(f"{name} is all zeros: nothing passes this norm", {"tensor": name}))
        elif tensor.ndim == 2:
            rows = tensor.float()[: 1 << 14]
            zero = float((rows == 0).all(-1).float().mean())
            if zero > 0.02 and name.startswith(("fc", "midlayer", "lm_head")):
                problems.append(Evidence(f"{percent(zero)} of the rows of {name} are zero", {"tensor": name, "share": zero}))
    problems += _twice_the_same(exam) + _few_values(exam)
    if problems:
        shadow, covers = ("head-foreign", "embedding-foreign"), ("norm-feedback", "step-shift", "architecture")
        return confirmed(Fault("weights-untrained", "draft", tuple(problems[:4]), _RESTORE, 0.95, shadow=shadow, covers=covers))
    return ruled_out("no weight is constant or empty")


def _twice_the_same(exam: Examination) -> list[Evidence]:
    """Matrices of the layer, and fc's column blocks, that are one and the same: a loop that wrote one of them under two names."""
    parts = {name: tensor for name, tensor in exam.tensors.items() if name.startswith("midlayer.") and tensor.ndim == 2}
    fc, count = exam.tensors.get("fc.weight"), exam.draft.num_slots if exam.draft else None
    if fc is not None and fc.ndim == 2 and count and fc.shape[1] % count == 0:
        parts |= {f"fc.weight, columns of slot {slot}": part for slot, part in enumerate(fc.chunk(count, dim=1))}
    same = [
        (left, right)
        for left, right in combinations(parts, 2)
        if parts[left].shape == parts[right].shape and float(parts[left].float().std()) > 0 and torch.equal(parts[left], parts[right])
    ]
    return [Evidence(f"{left} and {right} are the same, number by number", {"tensor": right}) for left, right in same]


def _few_values(exam: Examination) -> list[Evidence]:
    """Matrices of a handful of different numbers: a cast took the rest. None if most are so, as in a draft that is quantised on purpose."""
    parts = {name: t.float().flatten()[: 1 << 14] for name, t in exam.tensors.items() if t.ndim == 2 and t.is_floating_point()}
    held = {name: len(values.unique()) for name, values in parts.items() if len(values) >= _ENOUGH and bool(torch.isfinite(values).all())}
    few = {name: count for name, count in held.items() if 1 < count <= _HANDFUL}
    words = "{} has {} different numbers only: a cast or a quantiser took the rest"
    return [Evidence(words.format(*item), {"tensor": item[0]}) for item in few.items()] if 2 * len(few) <= len(held) else []


def whole_numbers(exam: Examination) -> Outcome:
    """Matrices of whole numbers alone, whatever format they are kept in: quantised ones without what they are to be multiplied by."""
    parts = {name: t.float().flatten()[:_SAMPLED] for name, t in exam.tensors.items() if t.ndim == 2 and t.is_floating_point()}
    found = {name: float(values.abs().max()) for name, values in parts.items() if len(values) >= _ENOUGH and _all_whole(values)}
    if not found:
        return ruled_out(f"none of {len(parts)} matrices holds whole numbers alone")
    evidence = tuple(Evidence(f"every number of {name} is whole, up to {most:g}", {"tensor": name}) for name, most in found.items())
    covers = ("weights-untrained", "norm-placement", "norm-convention")
    remedy = "multiply them by the scales that they were quantised with, or export the draft again in bf16"
    return confirmed(Fault("scales-unread", "draft", evidence[:4], remedy, 0.94, covers=covers))


def _all_whole(values: torch.Tensor) -> bool:
    return bool((values == values.round()).all()) and float(values.abs().max()) > 1


def second_copy(exam: Examination) -> Outcome:
    """A pickled copy beside the safetensors, as far as both hold the same tensor; another number format is no difference."""
    draft = exam.draft
    assert draft is not None
    if not draft.weights.files or not draft.weights.pickled:
        return untestable("the weights lie there once")
    other = pickled_tensors(draft)
    both = sorted(name for name in set(other) & set(exam.tensors) if other[name].is_floating_point())
    unlike = [name for name in both if not _same(other[name], exam.tensors[name])]
    if not unlike:
        return ruled_out(f"{len(both)} tensors lie there twice, and are the same")
    text = f"{len(unlike)} of {len(both)} tensors, such as {unlike[0]}, are others in {', '.join(draft.weights.pickled[:2])} than in "
    text += f"{draft.weights.files[0]}: which draft is run depends on which file is read"
    remedy = "keep the file that the training wrote last, and remove the other"
    return confirmed(Fault("files-mixed", "draft", (Evidence(text, {"tensors": unlike[:8]}),), remedy, 0.65))


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape:
        return False
    apart = (left.float() - right.float()).norm() / right.float().norm().clamp_min(1e-9)
    return bool(apart < 0.02)


def stored_frequencies(exam: Examination) -> Outcome:
    """RoPE's frequencies as transformers works them out of the config, against stored and recorded ones."""
    from eyas.doctor.opening.lenient import lenient_config
    from eyas.draft.layer import DraftLayer
    from eyas.errors import UserError

    draft = exam.draft
    assert draft is not None
    if "fc.weight" not in exam.tensors:
        return untestable("the draft's weights cannot be read")
    recorded = draft.said.get("rope_inv_freq")
    stored = _stored_inv_freq(exam)
    if stored is None and not (isinstance(recorded, list) and all(isinstance(one, int | float) for one in recorded)):
        return untestable("no frequencies were stored or recorded")
    try:
        config = lenient_config(exam)[0]
        with torch.device("cpu"):
            exact = DraftLayer(config).rope.inv_freq.float() if config.hidden_size <= 1024 else _frequencies(config)
    except (UserError, KeyError, ValueError, TypeError) as error:
        return untestable(f"the config's RoPE cannot be worked out: {type(error).__name__}: {error}")
    there = torch.tensor(recorded, dtype=torch.float32) if isinstance(recorded, list) else stored
    assert there is not None
    where = "the wiring" if isinstance(recorded, list) else "the weights"
    if there.shape != exact.shape or not torch.allclose(there, exact, rtol=1e-2 if where == "the weights" else 1e-4, atol=0):
        text = f"{where} has the frequencies {_few(there)}, and config.json gives {_few(exact)}"
        scaled = config.rope_parameters.get("rope_type", "default") != "default" or (there.shape == exact.shape and not _is_power(there))
        code = "rope-scaling" if scaled else "rope-theta"
        remedy = "set rope_theta and scaling back to what the draft was trained with"
        return confirmed(Fault(code, "draft", (Evidence(text),), remedy, 0.74))
    return ruled_out(f"config.json gives the frequencies of {where}: {_few(exact)}")


def _frequencies(config: object) -> torch.Tensor:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config.layer_config()).inv_freq.float()  # type: ignore[attr-defined]


def _stored_inv_freq(exam: Examination) -> torch.Tensor | None:
    from safetensors import SafetensorError, safe_open

    assert exam.draft is not None
    for key, info in exam.draft.weights.tensors.items():
        if key.endswith("rotary_emb.inv_freq") and info.dtype in FLOATS:
            try:
                with safe_open(exam.draft.folder / info.file, framework="pt") as opened:
                    return opened.get_tensor(key).float()
            except (OSError, SafetensorError):
                return None
    return None


def _is_power(frequencies: torch.Tensor) -> bool:
    """Unscaled frequencies fall by the same factor each."""
    ratio = frequencies[1:] / frequencies[:-1]
    return bool(torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-3))


def _few(values: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values[:3].tolist()) + f", ... {float(values[-1]):.4g}]"


@torch.no_grad()
def compare_embedding(exam: Examination) -> Outcome:
    """The draft's own embedding beside the target's table."""
    own, parts = exam.tensors.get("embed_tokens.weight"), exam.parts
    if own is None or parts is None:
        return untestable("the draft has no embedding of its own, or the target's cannot be read")
    theirs = parts.embed.get_parameter("weight") if hasattr(parts.embed, "weight") else None
    if theirs is None or theirs.shape != own.shape:
        return suspected("the draft's embedding is of another shape than the target's: it was trained apart")
    cosine_V = torch.nn.functional.cosine_similarity(own.float(), theirs.float(), dim=-1)
    alike = float((cosine_V > 0.9).float().mean())
    numbers = {"alike": alike, "mean_cosine": float(cosine_V.mean())}
    if alike > 0.98:
        scale = float((own.float().norm(dim=-1) / theirs.float().norm(dim=-1).clamp_min(1e-9)).median())
        if abs(scale - 1) > 0.05 and abs(scale / _scale_of(parts) - 1) > 0.05:
            text = f"the draft's embedding is the target's, {scale:.3g} times as long: engines that share the target's feed another one"
            return confirmed(Fault("embedding-foreign", "draft", (Evidence(text, {"scale": scale, **numbers}),), _SHARE, 0.6))
        return ruled_out(f"{percent(alike)} of the embedding's rows are the target's", **numbers)
    if alike > 0.02:
        bad = (cosine_V <= 0.9).nonzero().flatten()
        rows = f"{len(bad)} of {len(own)} rows (ids {int(bad[0])} to {int(bad[-1])})"
        text = f"{rows} of the draft's embedding are not the target's, the others are"
        return confirmed(Fault("embedding-foreign", "draft", (Evidence(text, numbers),), _SHARE, 0.8))
    norms = own.float().norm(dim=-1)
    text = f"the draft's embedding has nothing of the target's: mean cosine of its rows {numbers['mean_cosine']:.3f}"
    even = float(norms.std() / norms.mean().clamp_min(1e-9))
    if even < 0.2:
        text += f"; its rows are of nearly equal length (spread {even:.2f}), as fresh noise is"
        return confirmed(Fault("embedding-foreign", "draft", (Evidence(text, numbers),), _SHARE, 0.7, shadow=("weights-untrained",)))
    return suspected(text, **numbers)


_SHARE = "leave embed_tokens out of the export, so that every engine shares the target's; or restore the trained one"


def _scale_of(parts: Target) -> float:
    """By what the target's family multiplies its embeddings; 1 for most."""
    some = torch.arange(min(64, parts.vocab_size))
    bare = parts.embed.get_parameter("weight")[some].float().norm(dim=-1).clamp_min(1e-9)
    return float((parts.embed(some).float().norm(dim=-1) / bare).median())


@torch.no_grad()
def compare_head(exam: Examination) -> Outcome:
    """Fresh noise has rows of equal length, in no direction that tokens share."""
    head, parts = exam.tensors.get("lm_head.weight"), exam.parts
    if head is None or parts is None or head.ndim != 2:
        return untestable("there is no lm_head to compare, or the target's cannot be read")
    rows = head.float()[: 1 << 15]
    if not bool(torch.isfinite(rows).all()):
        return untestable("lm_head is not finite")
    norms = rows.norm(dim=-1)
    spread = float(norms.std() / norms.mean().clamp_min(1e-9))
    noise = (2 * rows.shape[1]) ** -0.5  # spread of the lengths of Gaussian rows
    common = float(rows.mean(0).norm() / norms.mean().clamp_min(1e-9))
    numbers = {"spread": spread, "of_noise": noise, "common": common}
    likeness = _likeness(exam, rows)
    if spread < 1.3 * noise and common < 2.5 * len(rows) ** -0.5 and abs(likeness) < 0.1:
        text = f"rows of lm_head are of equal length (spread {spread:.3f}, noise has {noise:.3f}) and share no direction: it is fresh noise"
        fault = Fault("head-foreign", "draft", (Evidence(text, numbers),), _RESTORE, 0.85)
        return confirmed(fault)
    if likeness > _THE_SAME:
        text = "lm_head has the target's own rows: it was not trained, or the target's weights were loaded over it"
        return suspected(text, likeness=likeness, **numbers)
    return ruled_out(f"rows of lm_head are not noise (spread of their lengths {spread:.3f}; noise has {noise:.3f})", **numbers)


def _likeness(exam: Examination, rows: torch.Tensor) -> float:
    """Mean cosine with the target's rows for the same tokens; 0 where they cannot be compared."""
    d2t, parts = exam.tensors.get("d2t"), exam.parts
    if parts is None or rows.shape[1] != parts.hidden_size or d2t is None or d2t.is_floating_point() or len(d2t) < len(rows):
        return 0.0
    ids = (d2t.long()[: len(rows)] + torch.arange(len(rows))).clamp(0, parts.vocab_size - 1)
    return float(torch.nn.functional.cosine_similarity(rows, parts.head_rows(ids).float(), dim=-1).mean())
