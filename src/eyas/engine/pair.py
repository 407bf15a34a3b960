"""A target and a draft made for each other, or an error before anything large is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.capture.trace import Trace, check_identity
from eyas.draft.checkpoint import load_draft, read_wiring, require_taps
from eyas.draft.model import Eagle3Draft
from eyas.taps import Tap
from eyas.targets.cpu_linear import can_pack, pack_linears
from eyas.targets.describe import loaded_wiring, target_wiring
from eyas.targets.layout import SINGLE, Layout
from eyas.targets.loading import load_target
from eyas.targets.target import Target
from eyas.wiring import require_match


@dataclass(frozen=True)
class ServingPair:
    """`warnings` say, in words, what differs but does not forbid the pairing."""

    target: Target
    draft: Eagle3Draft | None
    taps: tuple[Tap, ...]
    warnings: tuple[str, ...]


def load_pair(
    target: str,
    draft: Path | None,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
    layout: Layout = SINGLE,
) -> ServingPair:
    """Load a target, and a draft if there is one; over several ranks the target is split, and the draft whole on each.

    The draft's wiring is compared with the target's config and tokenizer before weights are read, and the target's
    identity with the draft's trace as soon as it is loaded.

    Raises:
        WiringError: they were not made for each other.
        UserError: files are missing or damaged.
    """
    if draft is not None:
        wiring = read_wiring(draft)
        require_taps(wiring, draft)
        require_match(wiring, "the draft", target_wiring(target, trust_remote_code), "the target")
    loaded = load_target(target, device=device, dtype=dtype, trust_remote_code=trust_remote_code, layout=layout)
    return ServingPair(loaded, None, (), ()) if draft is None else attach_draft(loaded, draft)


def attach_draft(target: Target, draft: Path) -> ServingPair:
    """Load a draft beside a target that is loaded already, in the target's dtype; checks and errors as in `load_pair`."""
    wiring = read_wiring(draft)
    differences = require_match(wiring, "the draft", loaded_wiring(target), "the target")
    # What is compared in numbers is the trace's business: a copy under another name is no reason to warn.
    warnings = [item.text("the draft", "the target") for item in differences if item.field_class == "recorded"]
    if wiring.teacher_verified is False:
        warnings.append(f"the draft {draft} learnt from a wrong teacher: {wiring.teacher} does not give the target's own tokens")
    made = load_draft(draft, target, target.dtype)
    if can_pack(target.device, target.dtype):
        pack_linears(made.draft)
    if made.trace_file is not None:
        check_identity(target, Trace.load(made.trace_file), f"the draft {made.name}")
    else:
        warnings.append(f"the draft {made.name} brings no trace, so it is not known whether this is the target it was trained on")
    return ServingPair(target, made.draft, made.wiring.taps, tuple(warnings))
