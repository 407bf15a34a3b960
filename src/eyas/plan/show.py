"""A plan as tables and sentences for a terminal."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from eyas.plan.hours import Run
from eyas.plan.memory import USABLE, LayoutCost
from eyas.plan.plan import ScalePlan
from eyas.plan.units import count, hours, size


def show(plan: ScalePlan) -> None:
    console = Console(file=sys.stdout, highlight=False)

    def say(*lines: str) -> None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)

    gpu, request = plan.request.fleet.gpu, plan.request
    say(*_heading(plan))
    say("", f"Disk for the dump; a text of {request.length:,} tokens leaves {size(plan.bytes_per_token * request.length)} of states")
    console.print(_dump_table(plan))
    say("", f"Memory of one GPU while capturing: {size(USABLE * gpu.memory)} of {size(gpu.memory)} can be used")
    console.print(_layout_table(plan))
    say(*_draft(plan), "", *_runs(plan))
    for title, lines in (("Assumed", plan.assumed), ("To know", plan.notes)):
        say("", title, *(f"- {line}" for line in lines))


def _heading(plan: ScalePlan) -> list[str]:
    shape, request = plan.shape, plan.request
    active = f", {count(shape.matrix_parameters)} of them used for a token" if shape.num_experts else ""
    attention = "MLA latents" if shape.latent_size else f"keys and values of {shape.num_kv_heads} heads"
    return [
        f"{shape.name}: {count(shape.parameters)} parameters{active}; {shape.num_layers} layers of {shape.hidden_size}",
        f"  weights {size(plan.weights.bytes_of(shape))}: {plan.weights.words(shape)}",
        f"  cache {size(2 * shape.num_layers * shape.cache_size)} a token: {attention}, bf16",
        f"{request.fleet.count} x {request.fleet.gpu.name}, {count(request.tokens)} tokens, texts of up to {request.length:,} tokens, "
        f"{request.num_taps} taps",
    ]


def _dump_table(plan: ScalePlan) -> Table:
    table = Table("format", "numbers", "a token leaves")
    table.add_column("bytes a token", justify="right")
    table.add_column("in all", justify="right")
    for row in plan.dump:
        table.add_row(row.format, row.dtype, row.stored, f"{row.bytes_per_token:,.0f}", size(row.bytes_per_token * plan.request.tokens))
    return table


def _layout_table(plan: ScalePlan) -> Table:
    shown = [cost for cost in plan.layouts if _is_worth_showing(cost, plan)]
    left_out = len(plan.layouts) - len(shown)
    caption = f"{left_out} more layouts with --json" if left_out else None
    table = Table(caption=caption, caption_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("layout", no_wrap=True)
    table.add_column("copies", justify="right", no_wrap=True)
    for name in ("weights", "cache", "activations", "in all"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for cost in shown:
        figures = (cost.weight_bytes, cost.cache_bytes, cost.activation_bytes, cost.total_bytes)
        table.add_row(str(cost.layout), str(cost.copies), *map(size, figures), _verdict(cost, plan))
    return table


def _is_worth_showing(cost: LayoutCost, plan: ScalePlan) -> bool:
    """The chosen one; tensor parallelism alone, with experts beside it or over all GPUs; and context parallelism at one tp."""
    layout, gpus = cost.layout, plan.request.fleet.count
    if len(plan.layouts) == 1 or cost == plan.chosen:
        return True
    like = plan.chosen.layout if plan.chosen else max((item.layout for item in plan.layouts), key=lambda item: (item.ep, item.tp))
    if layout.cp == 1:
        return layout.ep in (1, layout.tp, gpus)
    return layout.tp == like.tp and layout.ep == like.ep


def _verdict(cost: LayoutCost, plan: ScalePlan) -> str:
    if not cost.fits:
        return "no"
    return "taken" if cost == plan.chosen else "across nodes" if cost.crosses_nodes else "yes"


def _draft(plan: ScalePlan) -> list[str]:
    draft = plan.draft
    return [
        f"\nDraft: {count(draft.parameters)} parameters; training takes {size(draft.memory_bytes)} on its GPU: "
        f"{size(draft.trained_bytes)} with AdamW, {size(draft.frozen_bytes)} of the target's embedding and head, "
        f"{size(draft.activation_bytes)} for a batch",
    ]


def _runs(plan: ScalePlan) -> list[str]:
    if plan.chosen is None:
        enough = (
            f"{plan.needed_gpus} x {plan.request.fleet.gpu.name} would do" if plan.needed_gpus else "try --weight-bits or another --layout"
        )
        return [f"Memory limits: no layout of {plan.shape.name} fits {plan.request.fleet.count} x {plan.request.fleet.gpu.name}; {enough}"]
    lines = []
    if plan.offline:
        disk = size(plan.dump[0].bytes_per_token * plan.request.tokens)
        lines.append(f"Offline: {hours(plan.offline.hours)} and {disk} of disk. {_offline_words(plan.offline)}")
    if plan.online is None:
        lines.append("Online: not on these GPUs. All of them hold the target, and none is left to train on")
    else:
        lines.append(
            f"Online:  {hours(plan.online.hours)} and no disk; {size(plan.network_bytes)} over the network. {_online_words(plan.online)}"
        )
    return [*lines, _advice(plan)]


def _offline_words(run: Run) -> str:
    return (
        f"Capture {hours(run.capture_hours)} on {run.capture_gpus} GPUs at {size(run.bytes_per_second)}/s, "
        f"training {hours(run.train_hours)} on {run.train_gpus}; {run.limit} limits"
    )


def _online_words(run: Run) -> str:
    split = f"{run.capture_gpus} GPUs capture, {run.train_gpus} train, {size(run.bytes_per_second)}/s between them"
    return f"{split}; {run.limit} limits"


def _advice(plan: ScalePlan) -> str:
    if plan.online is None or plan.offline is None:
        return "Offline is what these GPUs can do; for online add GPUs that train."
    if plan.online.hours <= 1.1 * plan.offline.hours:
        return "Online takes no longer here, and no disk; offline leaves a dump that can be trained on again."
    return f"Offline is {plan.online.hours / plan.offline.hours:.1f} times as fast here, and leaves a dump that can be trained on again."
