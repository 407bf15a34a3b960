"""What one GPU holds while a target is captured, for every way to lay the target out over GPUs.

    weights      attention, MLPs, embedding and head / tp; experts / ep; key and value projections / min(tp, K);
                 norms, routers and MLA's way down on every rank
    cache        T tokens in flight, every layer: keys and values / min(tp, K), MLA's latents whole; cp divides neither,
                 because every rank of a prefill attends to all keys
    activations  T / cp tokens: the taps at full width, the residual stream, and the widest step of a layer / tp;
                 beside them the keys and values of one layer for all T tokens, and two chunks of logits

An engine that captures (vLLM, SGLang) keeps the cache; Eyas's own capture does not, and needs that much less.

Legend: tp, cp, ep ranks of tensor, context and expert parallelism; K key/value heads, T tokens in flight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eyas.errors import UserError
from eyas.plan.gpus import Fleet
from eyas.plan.shape import Shape
from eyas.plan.weights import Weights

USABLE = 0.9  # of a GPU's memory: what vLLM takes by default; the rest is the driver's, NCCL's and lost to fragments
LOGIT_BYTES = 2 * (256 << 20)  # eyas.capture.forward makes logits in chunks of this size, in fp32 beside bf16
_NODE = 8  # GPUs on one fast interconnect


@dataclass(frozen=True)
class Layout:
    """tp · cp GPUs hold one copy of the target; experts are spread over ep GPUs, which may be those of several copies."""

    tp: int
    cp: int = 1
    ep: int = 1

    @property
    def gpus_per_copy(self) -> int:
        return self.tp * self.cp

    @property
    def gpus_together(self) -> int:
        """Copies that share their experts run, and stop, together."""
        return max(self.gpus_per_copy, self.ep)

    def __str__(self) -> str:
        return f"tp={self.tp},cp={self.cp},ep={self.ep}"

    @staticmethod
    def parse(text: str, shape: Shape, fleet: Fleet) -> Layout:
        """tp=8,cp=2,ep=16; cp is 1 and ep is tp if unsaid. Raises UserError for a layout that cannot be."""
        given = dict(re.findall(r"(tp|cp|ep)\s*=\s*(\d+)", text))
        if "tp" not in given or re.sub(r"(tp|cp|ep)\s*=\s*\d+|[\s,]", "", text):
            raise UserError("--layout cannot be read", got=text, allowed="tp=8,cp=2,ep=8")
        tp = int(given["tp"])
        layout = Layout(tp, int(given.get("cp", 1)), int(given.get("ep", tp if shape.num_experts else 1)))
        wrong = layout.problem(shape, fleet.count)
        if wrong:
            raise UserError(f"no such layout of {shape.name} on {fleet.count} GPUs", got=str(layout), allowed=wrong)
        return layout

    def problem(self, shape: Shape, gpus: int) -> str | None:
        """Why it cannot be, as the rule that it breaks; None if it can."""
        if min(self.tp, self.cp, self.ep) < 1:
            return "numbers of at least 1"
        if self.gpus_per_copy > gpus:
            return f"tp·cp of at most {gpus}, the number of GPUs"
        if shape.num_heads % self.tp:
            return f"a tp that divides the {shape.num_heads} attention heads"
        if not shape.num_experts:
            return "ep=1: the model has no experts" if self.ep > 1 else None
        if shape.num_experts % self.ep:
            return f"an ep that divides the {shape.num_experts} experts"
        return None if self.ep <= gpus else f"an ep of at most {gpus}, the number of GPUs"


@dataclass(frozen=True)
class LayoutCost:
    """Bytes on one GPU. `copies`: how many of the target fit the number of GPUs, with what is left over idle."""

    layout: Layout
    copies: int
    weight_bytes: float
    cache_bytes: float
    activation_bytes: float
    usable_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.weight_bytes + self.cache_bytes + self.activation_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.usable_bytes

    @property
    def crosses_nodes(self) -> bool:
        return self.layout.tp > _NODE


def layout_cost(shape: Shape, weights: Weights, layout: Layout, fleet: Fleet, *, tokens: int, num_taps: int) -> LayoutCost:
    """`tokens`: in flight in one copy."""
    held = {name: getattr(shape.parts, name) * bits / 8 for name, bits in weights.bits.items()}
    shared_heads = min(layout.tp, shape.num_kv_heads)
    sharded = held["embedding"] + held["head"] + held["attention"] + held["dense"] + held["shared"]
    weight = sharded / layout.tp + held["key_value"] / shared_heads + held["latent"] + held["small"] + held["experts"] / layout.ep
    cache = 2 * tokens * shape.num_layers * shape.cache_size / (1 if shape.latent_size else shared_heads)
    return LayoutCost(
        layout=layout,
        copies=fleet.count // layout.gpus_per_copy,
        weight_bytes=weight,
        cache_bytes=cache,
        activation_bytes=_activations(shape, layout, tokens, num_taps),
        usable_bytes=USABLE * fleet.gpu.memory,
    )


def _activations(shape: Shape, layout: Layout, tokens: int, num_taps: int) -> float:
    """Two bytes a number. Scores are not kept: sdpa and flash attention make them in tiles."""
    hidden, tp = shape.hidden_size, layout.tp
    queries = shape.num_heads * (2 * shape.key_size + shape.value_size) / tp  # before and after RoPE, and what was attended
    steps = [queries, 3 * shape.intermediate_size / tp]
    if shape.num_experts:
        steps.append(shape.experts_per_token * (2 * hidden + 3 * shape.expert_size) / layout.ep)
    keys = 2 * tokens * (shape.key_size + shape.value_size) * shape.num_kv_heads / min(tp, shape.num_kv_heads)
    return 2 * (tokens / layout.cp) * ((num_taps + 4) * hidden + max(steps)) + keys + LOGIT_BYTES


def candidates(shape: Shape, fleet: Fleet) -> list[Layout]:
    """tp and cp in powers of two, experts over the ranks of one copy or over all GPUs."""
    found = []
    for tp in _powers(fleet.count):
        for cp in _powers(fleet.count // tp):
            widths = sorted({tp, tp * cp, fleet.count}) if shape.num_experts else [1]
            found += [layout for ep in widths if (layout := Layout(tp, cp, ep)).problem(shape, fleet.count) is None]
    return found


def _powers(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length())]


def best(costs: list[LayoutCost]) -> LayoutCost | None:
    """The one that fits on the fewest GPUs that must stay together, then the plainest: little cp, ranks of tp inside a node."""
    fitting = [cost for cost in costs if cost.fits]
    return min(fitting, key=_cost_order) if fitting else None


def _cost_order(cost: LayoutCost) -> tuple[int, bool, int, int]:
    layout = cost.layout
    return layout.gpus_together, cost.crosses_nodes, layout.cp, -layout.tp
