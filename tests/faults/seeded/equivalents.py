"""Which codes name one and the same cause. Written before the faults: a diagnosis is graded against this table alone.

Two codes stand in one row if nothing that can be observed tells their causes apart, or if the one is a case of the other.
What merely follows from a cause is not here: a draft that cannot be loaded because its lm_head is missing has no head.
"""

from __future__ import annotations

SAME_CAUSE: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"taps-shifted", "taps-other"}), "a neighbouring layer is another layer"),
    (frozenset({"slot-order", "taps-other"}), "columns in another order, or taps named in another order: the numbers are equal"),
    (frozenset({"taps-undeclared", "taps-engine"}), "where nothing is declared, the engine takes its default"),
    (frozenset({"taps-engine", "taps-impossible"}), "ids that name no state cannot be fed by any engine"),
    (frozenset({"taps-engine", "slot-order"}), "an engine that sorts ids feeds another order"),
    (frozenset({"pair-shift", "dump-other-rows"}), "states moved by a position are states of other positions"),
    (frozenset({"mask-shift", "mask-rule"}), "a shifted mask does not mark the answers"),
    (frozenset({"label-shift", "teacher-layer", "dump-other-rows"}), "labels' states of other positions"),
    (frozenset({"head-missing", "keys-differ"}), "a missing head is a missing tensor"),
    (frozenset({"norm-flags", "keys-differ"}), "a switch without its tensors, or tensors without their switch"),
    (frozenset({"map-missing", "keys-differ"}), "a missing map is a missing tensor"),
    (frozenset({"head-shape", "shape-differs", "architecture"}), "heads that do not fit are shapes that do not fit"),
    (frozenset({"map-other", "head-foreign"}), "rows of the head exchanged, or the ids that they stand for"),
    (frozenset({"map-other", "map-absolute", "map-broken"}), "ids taken for offsets lead to other rows, and often out of range"),
    (frozenset({"weights-untrained", "head-foreign", "embedding-foreign"}), "a head or embedding at random was never trained"),
    (frozenset({"rope-theta", "rope-schema"}), "a theta that is not found is read as 10000"),
    (frozenset({"rope-theta", "rope-scaling"}), "both change the frequencies; from the numbers alone they are alike"),
    (frozenset({"target-changed", "other-target", "draft-stale"}), "other weights than those that the draft saw"),
    (frozenset({"dump-broken", "dump-changed", "dump-short"}), "a file that is not what the manifest says"),
    (frozenset({"files-mixed", "dump-wiring", "dump-changed"}), "files of two makings in one folder"),
    (frozenset({"states-scattered", "dump-empty-rows"}), "what a rank does not hold is empty"),
    (frozenset({"weights-not-finite", "weights-broken"}), "a number that is none damages the file"),
    (frozenset({"text-foreign", "mask-rule"}), "what is marked as an answer is not the target's"),
    (frozenset({"config-broken", "shape-differs"}), "a size that no tensor has"),
    (frozenset({"architecture", "architecture-engine", "keys-differ"}), "a layer that the weights do not have"),
    (frozenset({"files-mixed", "norm-flags"}), "a file edited by hand, or of another making: nothing tells them apart"),
    (frozenset({"files-mixed", "taps-other"}), "the same of a wiring that names other taps"),
    (frozenset({"dtype-differs", "scales-unread"}), "weights of eight bits without their scales"),
    (frozenset({"taps-impossible", "shape-differs"}), "as many ids as fc has no slots for"),
)


def accepted(code: str) -> frozenset[str]:
    """The codes that count as `code`."""
    return frozenset({code}).union(*(row for row, _ in SAME_CAUSE if code in row))
