"""The README.md that travels with a draft: what it is, how it was made, what it needs."""

from __future__ import annotations

import sys

from eyas.data.store import Dump
from eyas.provenance import command_line
from eyas.targets.target import Target
from eyas.train.report import TrainReport
from eyas.train.settings import TrainSettings
from eyas.wiring import Wiring


def card_text(target: Target, dump: Dump, wiring: Wiring, settings: TrainSettings, report: TrainReport) -> str:
    """Plain facts, all of this run."""
    steps = ", ".join(f"{100 * value:.1f} %" for value in report.validation_conditional_accuracy)
    warning = (
        "" if wiring.teacher_verified else "\n**The teacher of this draft failed its check: the labels are not the target's own tokens.**\n"
    )
    return f"""# EAGLE-3 draft for {target.name}
{warning}
| | |
| --- | --- |
| target | {target.name} ({target.config.model_type}, {target.num_layers} layers, hidden size {target.hidden_size}) |
| reads | {", ".join(str(tap) for tap in wiring.taps)}, in this order |
| teacher | {wiring.teacher} |
| draft vocabulary | {report.draft_vocab_size} of {target.vocab_size} tokens, {100 * report.vocab_coverage:.1f} % of the answers' tokens |
| trained on | {dump.num_samples} chats, {dump.num_scored_rows} answer rows; {report.tokens_passed} passed in {report.steps} steps |
| training-time test | {settings.ttt_steps} steps, loss weights {settings.decay:g}^k |
| validation, conditional accuracy a step | {steps} (uniform over rows) |

Made by:

    {command_line(["eyas", *sys.argv[1:]], hide=())}

`wiring.json` says what the draft must be fed; `eyas wiring show` prints it.
"""
