"""The same weights read otherwise: slots and halves in another order, other heads of the same shapes, another RoPE layout."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Outcome, ruled_out
from eyas.doctor.replay.subject import Subject
from eyas.doctor.replay.taps import states_beyond_order
from eyas.doctor.replay.trial import Option, bench_of, try_options
from eyas.taps import format_taps

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_ATTENTION = "midlayer.self_attn."
_READ_BOTH = tuple(f"{_ATTENTION}{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa"))
# What tensor parallelism splits, and along which axis.
_SHARDED = {f"{_ATTENTION}{name}_proj.weight": axis for name, axis in (("q", 0), ("k", 0), ("v", 0), ("o", 1))}
_SHARDED |= {f"midlayer.mlp.{name}_proj.weight": axis for name, axis in (("gate", 0), ("up", 0), ("down", 1))}
_HEAD_DIMS = (8, 16, 32, 64, 80, 96, 128, 192, 256)
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
_EPS = (1e-5, 1e-6)


def try_columns(exam: Examination) -> Outcome:
    """fc's column blocks against the states, with and without the norms in front of it."""
    bench = bench_of(exam)
    subject, count = bench.subject, bench.subject.config.num_taps
    other = states_beyond_order(bench)
    if other is not None:
        return ruled_out(f"other states, {format_taps(other)}, predict better than these do in any order")
    if count > 4:
        orders = [_swap(count, a, b) for a in range(count) for b in range(a)]
    else:
        orders = [order for order in permutations(range(count)) if list(order) != sorted(order)]
    options = []
    for order in orders:
        taps = tuple(subject.taps[slot] for slot in order)
        words = ",".join(map(str, taps))
        remedy = f"feed the states in the order {words}, or permute fc's columns: eyas export --to an engine does it and proves it"
        options.append(Option(f"states in the order {words}", dataclasses.replace(subject, taps=taps), remedy))
        if subject.config.fc_norm or subject.config.norm_before_fc:
            blocks = subject.tensors["fc.weight"].chunk(count, dim=-1)
            moved = {"fc.weight": torch.cat([blocks[order.index(slot)] for slot in range(count)], dim=-1)}
            named = f"fc's columns in the order {[order.index(slot) for slot in range(count)]}, their norms as they are"
            options.append(Option(named, subject.having(moved), f"permute fc's columns: {named}"))
    suspected = exam.suspects("slot-order", "files-mixed")
    return try_options(exam, "slot-order", options, suspected=suspected, shadow=())


def _swap(count: int, a: int, b: int) -> tuple[int, ...]:
    order = list(range(count))
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def try_halves(exam: Examination) -> Outcome:
    subject = bench_of(exam).subject
    swapped = {name: _halves(tensor) for name, tensor in subject.tensors.items() if name in _READ_BOTH}
    a, b = "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"
    norms = {a: subject.tensors[b], b: subject.tensors[a]}
    remedy = "swap the halves of q, k and v's columns: EAGLE-3 reads [embedding, state]"
    options = [
        Option("attention reads [state, embedding]", subject.having(swapped), remedy),
        Option(
            "attention reads [state, embedding], norms swapped too", subject.having(swapped | norms), remedy + "; and swap the two norms"
        ),
    ]
    options += [
        Option(f"the halves of {name} swapped", subject.having({name: tensor}), f"swap the halves of {name}'s columns")
        for name, tensor in swapped.items()
    ]
    return try_options(exam, "half-order", options + _shards(subject))


def _halves(weight: torch.Tensor) -> torch.Tensor:
    left, right = weight.chunk(2, dim=-1)
    return torch.cat([right, left], dim=-1)


def try_architecture(exam: Examination) -> Outcome:
    """Whatever fits the same shapes."""
    subject = bench_of(exam).subject
    config = subject.config
    options = [
        Option(f"hidden_act {act}", subject.configured(hidden_act=act), f"set hidden_act to {act}")
        for act in _ACTIVATIONS
        if act != config.hidden_act
    ]
    options += [
        Option(f"rms_norm_eps {eps:g}", subject.configured(rms_norm_eps=eps), f"set rms_norm_eps to {eps:g}")
        for eps in _EPS
        if abs(config.rms_norm_eps / eps - 1) > 0.01
    ]
    gate, up = subject.tensors["midlayer.mlp.gate_proj.weight"], subject.tensors["midlayer.mlp.up_proj.weight"]
    moved = {"midlayer.mlp.gate_proj.weight": up, "midlayer.mlp.up_proj.weight": gate}
    options.append(Option("gate_proj and up_proj exchanged", subject.having(moved), "exchange gate_proj and up_proj in the weights"))
    options += _heads(subject) if config.mla is None else _mla(subject)
    options += _transposed(subject)
    suspected = exam.suspects("architecture", "head-shape", "not-loadable")
    return try_options(exam, "architecture", options, suspected=suspected)


def _heads(subject: Subject) -> list[Option]:
    query, key = subject.tensors[_ATTENTION + "q_proj.weight"], subject.tensors[_ATTENTION + "k_proj.weight"]
    found = []
    for size in _HEAD_DIMS if not subject.config.qk_norm else ():
        heads, groups = len(query) // size, len(key) // size
        if size == subject.config.head_dim or len(query) % size or len(key) % size or not groups or heads % groups:
            continue
        other = subject.configured(head_dim=size, num_attention_heads=heads, num_key_value_heads=groups)
        text = f"{heads} heads of {size} over {groups}"
        found.append(Option(text, other, f"set head_dim {size}, num_attention_heads {heads}, num_key_value_heads {groups}", "head-shape"))
    for words, change in (("interleaved", _to_halves), ("in halves", _to_pairs)):
        moved = {_ATTENTION + f"{name}_proj.weight": change(weight, subject.config.head_dim) for name, weight in (("q", query), ("k", key))}
        remedy = f"reorder the rows of q and k: they are laid out for RoPE that turns pairs {words}"
        found.append(Option(f"q and k laid out for RoPE {words}", subject.having(moved), remedy))
    return found


def _to_halves(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of pairs (0, 1), (2, 3), ... to rows i and i + half."""
    return weight.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).reshape(weight.shape)


def _to_pairs(weight: torch.Tensor, size: int) -> torch.Tensor:
    return weight.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).reshape(weight.shape)


def _mla(subject: Subject) -> list[Option]:
    mla = subject.config.mla
    assert mla is not None
    other = dataclasses.replace(mla, rope_interleaved=not mla.rope_interleaved)
    found = [
        Option(
            f"rope_interleave {other.rope_interleaved}", subject.configured(mla=other), f"set rope_interleave to {other.rope_interleaved}"
        )
    ]
    for factor in {1.0, mla.softmax_factor**2, mla.softmax_factor**0.5} - {mla.softmax_factor}:
        scaled = dataclasses.replace(mla, softmax_factor=factor)
        found.append(Option(f"softmax factor {factor:.3g}", subject.configured(mla=scaled), "apply YaRN's mscale as in training"))
    return found


def _transposed(subject: Subject) -> list[Option]:
    """Conversions that leave shapes as they are."""
    found = []
    for name in (f"{_ATTENTION}o_proj.weight", "fc.weight", "midlayer.mlp.down_proj.weight"):
        tensor = subject.tensors.get(name)
        if tensor is not None and tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]:
            found.append(Option(f"{name} transposed", subject.having({name: tensor.T.contiguous()}), f"transpose {name} in the weights"))
    return found


def _shards(subject: Subject) -> list[Option]:
    """The shards of two ranks joined in the wrong order. Tried beside the other halves: any helps a little where another is the cause."""
    found = []
    for name, axis in _SHARDED.items():
        tensor = subject.tensors.get(name)
        if tensor is not None and tensor.shape[axis] % 2 == 0:
            left, right = tensor.chunk(2, dim=axis)
            words = f"the halves of {name}'s {('rows', 'columns')[axis]} exchanged"
            remedy = f"exchange them in the weights: shards of {name} were joined in another order than they were split"
            found.append(Option(words, subject.having({name: torch.cat([right, left], dim=axis)}), remedy, "architecture"))
    return found
