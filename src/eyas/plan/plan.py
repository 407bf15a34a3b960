"""One plan: what a target, so many GPUs and so many tokens come to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eyas.errors import UserError
from eyas.plan.config import Config
from eyas.plan.disk import DumpRow, dump_rows, state_bytes
from eyas.plan.draft import DraftCost, draft_cost
from eyas.plan.gpus import Fleet
from eyas.plan.hours import CAPTURE_SHARE, DISK_RATE, NETWORK_RATE, SOURCE, TRAIN_SHARE, Rates, Run, default_rate, offline, online
from eyas.plan.memory import USABLE, Layout, LayoutCost, best, candidates, layout_cost
from eyas.plan.shape import Shape, read_shape
from eyas.plan.units import count, hours, size
from eyas.plan.weights import Weights, read_weights

CAPTURE_TOKENS, TRAIN_TOKENS = 4096, 2048  # what a batch of eyas capture and of eyas train holds unless told otherwise
DRAFT_VOCAB = 8192  # of eyas train, likewise
_LARGEST_FLEET = 1 << 16


@dataclass(frozen=True)
class Request:
    """`length`: tokens of the longest text. Rates in tokens a second and GPU, or bytes a second; None is the default."""

    fleet: Fleet
    tokens: int
    length: int = 4096
    num_taps: int = 3
    draft_vocab_size: int | None = None
    ttt_steps: int = 3
    epochs: int = 1
    capture_rate: float | None = None
    train_rate: float | None = None
    disk_rate: float | None = None
    network_rate: float | None = None
    layout: str | None = None
    weight_bits: int | None = None

    def check(self) -> None:
        """Raises UserError for a number that is not positive."""
        for name in ("length", "num_taps", "draft_vocab_size", "ttt_steps", "epochs", "capture_rate", "train_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e15:
                raise UserError(f"--{name.replace('_', '-')} must be positive", got=value)
        if self.weight_bits is not None and not 1 <= self.weight_bits <= 32:
            raise UserError("--weight-bits is out of range", got=self.weight_bits, allowed="1 to 32")


@dataclass(frozen=True)
class ScalePlan:
    """`chosen`: the layout that is reckoned with, None if none fits. `needed_gpus`: how many would do if these do not."""

    request: Request
    shape: Shape
    weights: Weights
    dump: tuple[DumpRow, ...]
    layouts: tuple[LayoutCost, ...]
    chosen: LayoutCost | None
    needed_gpus: int | None
    draft: DraftCost
    rates: Rates
    offline: Run | None
    online: Run | None
    assumed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def bytes_per_token(self) -> int:
        """What goes from capture to training: the taps and the state that labels come from."""
        return state_bytes(self.shape, self.request.num_taps)

    @property
    def network_bytes(self) -> int:
        return self.bytes_per_token * self.request.tokens * self.request.epochs

    def to_json(self) -> dict[str, Any]:
        tokens, shape, fleet = self.request.tokens, self.shape, self.request.fleet
        return {
            "target": {
                **{key: value for key, value in asdict(shape).items() if key != "parts"},
                "parameters": shape.parameters,
                "parameters_by_part": asdict(shape.parts),
                "matrix_parameters_per_token": shape.matrix_parameters,
                "weight_bytes": self.weights.bytes_of(shape),
                "weights": self.weights.words(shape),
                "cache_bytes_per_token": 2 * shape.num_layers * shape.cache_size,
            },
            "gpus": {"count": fleet.count, **asdict(fleet.gpu)},
            "tokens": tokens,
            "dump": [{**asdict(row), "bytes": row.bytes_per_token * tokens} for row in self.dump],
            "longest_text_bytes": self.bytes_per_token * self.request.length,
            "layouts": [_layout_json(cost) for cost in self.layouts],
            "layout": _layout_json(self.chosen) if self.chosen else None,
            "needed_gpus": self.needed_gpus,
            "draft": {**asdict(self.draft), "parameters": self.draft.parameters, "memory_bytes": self.draft.memory_bytes},
            "rates": asdict(self.rates),
            "network": {"bytes_per_token": self.bytes_per_token, "bytes": self.network_bytes},
            "offline": asdict(self.offline) if self.offline else None,
            "online": asdict(self.online) if self.online else None,
            "limits": limits(self),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }


def make_plan(config: Config, request: Request) -> ScalePlan:
    """Raises UserError for a model that cannot be counted, or a request that cannot be."""
    request.check()
    shape, weights = read_shape(config), read_weights(config, request.weight_bits)
    vocab = min(request.draft_vocab_size or DRAFT_VOCAB, shape.vocab_size)
    if request.draft_vocab_size is not None and request.draft_vocab_size > shape.vocab_size:
        raise UserError("--draft-vocab-size is larger than the target's vocabulary", got=request.draft_vocab_size, allowed=shape.vocab_size)
    layouts = _layouts(shape, weights, request, request.fleet)
    chosen = best(layouts)
    rows = max(TRAIN_TOKENS, request.length)
    draft = draft_cost(shape, num_taps=request.num_taps, draft_vocab_size=vocab, ttt_steps=request.ttt_steps, rows=rows)
    rates = _rates(request, shape, draft)
    dump = tuple(dump_rows(shape, request.num_taps, vocab))
    return ScalePlan(
        request=request,
        shape=shape,
        weights=weights,
        dump=dump,
        layouts=tuple(layouts),
        chosen=chosen,
        needed_gpus=None if chosen else _needed_gpus(shape, weights, request),
        draft=draft,
        rates=rates,
        offline=_offline(request, rates, chosen, dump[0].bytes_per_token) if chosen else None,
        online=_online(request, rates, chosen, state_bytes(shape, request.num_taps)) if chosen else None,
        assumed=tuple(_assumed(request, rates, vocab)),
        notes=tuple(_notes(config, request, shape, weights, draft, rates)),
    )


def _layouts(shape: Shape, weights: Weights, request: Request, fleet: Fleet) -> list[LayoutCost]:
    wanted = [Layout.parse(request.layout, shape, fleet)] if request.layout else candidates(shape, fleet)
    tokens = max(CAPTURE_TOKENS, request.length)
    return [layout_cost(shape, weights, layout, fleet, tokens=tokens, num_taps=request.num_taps) for layout in wanted]


def _needed_gpus(shape: Shape, weights: Weights, request: Request) -> int | None:
    """The smallest power of two of these GPUs on which some layout fits; None if the layout was given, or none does."""
    if request.layout:
        return None
    number = 1
    while number <= _LARGEST_FLEET:
        if best(_layouts(shape, weights, request, Fleet(number, request.fleet.gpu))):
            return number
        number *= 2
    return None


def _rates(request: Request, shape: Shape, draft: DraftCost) -> Rates:
    gpu = request.fleet.gpu
    return Rates(
        capture=request.capture_rate or default_rate(gpu, CAPTURE_SHARE, shape.flops_per_token(request.length)),
        train=request.train_rate or default_rate(gpu, TRAIN_SHARE, draft.flops_per_row),
        disk=request.disk_rate or DISK_RATE,
        network=request.network_rate or NETWORK_RATE,
    )


def _offline(request: Request, rates: Rates, chosen: LayoutCost, bytes_per_token: float) -> Run:
    busy = chosen.copies * chosen.layout.gpus_per_copy
    gpus, tokens, epochs = request.fleet.count, request.tokens, request.epochs
    return offline(rates, gpus=gpus, capture_gpus=busy, tokens=tokens, epochs=epochs, bytes_per_token=bytes_per_token)


def _online(request: Request, rates: Rates, chosen: LayoutCost, bytes_per_token: float) -> Run | None:
    together = chosen.layout.gpus_together
    gpus, tokens, epochs = request.fleet.count, request.tokens, request.epochs
    return online(rates, gpus=gpus, gpus_together=together, tokens=tokens, epochs=epochs, bytes_per_token=bytes_per_token)


def limits(plan: ScalePlan) -> list[str]:
    """What sets the size or the pace, in words."""
    if plan.chosen is None:
        return ["memory: no layout fits these GPUs"]
    found = []
    if plan.offline:
        found.append(f"offline: {plan.offline.limit}")
    found.append(f"online: {plan.online.limit}" if plan.online else "online: every GPU holds the target, none is left to train on")
    return found


def _assumed(request: Request, rates: Rates, vocab: int) -> list[str]:
    found = []
    if request.capture_rate is None:
        found.append(f"capture at {rates.capture:,.0f} tokens a second and GPU: {CAPTURE_SHARE:.0%} of peak, {SOURCE}")
    if request.train_rate is None:
        found.append(f"training at {rates.train:,.0f} tokens a second and GPU: {TRAIN_SHARE:.0%} of peak, from the same run")
    if request.disk_rate is None:
        found.append("a disk of 5 GB/s (--disk-rate)")
    if request.network_rate is None:
        found.append("a network of 50 GB/s between capture and training: one port of 400 Gb/s (--network-rate)")
    if request.draft_vocab_size is None:
        found.append(f"a draft that knows {vocab:,} tokens, as eyas train makes it (--draft-vocab-size)")
    return found


def _notes(config: Config, request: Request, shape: Shape, weights: Weights, draft: DraftCost, rates: Rates) -> list[str]:
    found = ["writing the answers (eyas data regenerate) is not counted: the target decodes them token by token"]
    if config.has_other_parts:
        found.append("the language model only; towers for images or sound are not counted")
    extra = config.number("num_nextn_predict_layers", default=0)
    if extra:
        found.append(f"{extra} layer(s) for multi-token prediction are not counted: capture does not run them")
    alone = hours(request.epochs * request.tokens / rates.train / 3600)
    beside = draft.memory_bytes + weights.bytes_of(shape)
    whole = "fits" if beside <= USABLE * request.fleet.gpu.memory else "does not fit"
    found.append(
        f"eyas train runs on one GPU, which takes {alone} for {count(request.tokens * request.epochs)} tokens, and loads the whole "
        f"target beside the draft, which {whole} on one {request.fleet.gpu.name}"
    )
    if draft.score_bytes > draft.activation_bytes / 2:
        found.append(
            f"eyas train keeps every attention score of a text: {size(draft.score_bytes)} for one of {max(TRAIN_TOKENS, request.length):,} "
            "trained tokens, and four times that for one twice as long"
        )
    return found


def _layout_json(cost: LayoutCost) -> dict[str, Any]:
    return {
        **asdict(cost.layout),
        "copies": cost.copies,
        "weight_bytes": cost.weight_bytes,
        "cache_bytes": cost.cache_bytes,
        "activation_bytes": cost.activation_bytes,
        "total_bytes": cost.total_bytes,
        "usable_bytes": cost.usable_bytes,
        "fits": cost.fits,
    }
