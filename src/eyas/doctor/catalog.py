"""Every code that the doctor can report, with the kind of fault it belongs to, and what cannot be tested from outside.

A kind is a letter: faults of one kind are mended at the same place. docs/doctor/CODE.md explains each code.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {
    "A": "which states are captured",
    "B": "norms and what is fed back",
    "C": "order of slots and the head's architecture",
    "D": "token, state, label and mask shifted against each other",
    "E": "RoPE",
    "F": "map of the draft vocabulary",
    "G": "embedding and lm_head",
    "H": "checkpoint and config",
    "I": "integrity of the dump",
    "J": "disk, memory and time",
    "K": "chat template, mask and tokenizer",
    "L": "training",
    "M": "partial or scattered states",
    "N": "number formats and quantisation",
    "O": "caches and rollback",
    "P": "batching",
    "Q": "losslessness",
    "R": "metrics",
    "S": "weights that changed",
}


@dataclass(frozen=True)
class Entry:
    """`code` names the page docs/doctor/CODE.md."""

    code: str
    kind: str
    title: str


_ROWS = (
    ("taps-shifted", "A", "the states are those of a neighbouring layer"),
    ("taps-other", "A", "the draft reads other states than declared"),
    ("taps-undeclared", "A", "nothing says which states the draft reads"),
    ("taps-impossible", "A", "the layer ids name no states, or not as many as fc reads"),
    ("taps-engine", "A", "the engine would feed other states than the draft reads"),
    ("teacher-layer", "A", "the labels come from another state than the target's last"),
    ("norm-placement", "B", "a norm stands elsewhere than the draft was trained with"),
    ("norm-feedback", "B", "the state fed back is normed where it was not in training, or the reverse"),
    ("norm-flags", "B", "the config's norm switches contradict the weights"),
    ("norm-convention", "B", "norm weights are stored as differences from 1"),
    ("norm-state", "B", "captured states went through a norm, or lack one"),
    ("teacher-norm", "B", "the labels' state lacks the final norm, or has it twice"),
    ("norm-engine", "B", "the engine does not honour a norm switch of the draft"),
    ("slot-order", "C", "the states are concatenated in another order than fc's columns"),
    ("half-order", "C", "attention reads [state, embedding] where the weights want [embedding, state]"),
    ("head-shape", "C", "the config's heads do not fit the weights"),
    ("architecture", "C", "the layer computes something else than the weights were trained in"),
    ("architecture-engine", "C", "the engine cannot run this kind of draft"),
    ("pair-shift", "D", "token and state are shifted against each other"),
    ("label-shift", "D", "labels are shifted against the tokens"),
    ("mask-shift", "D", "the loss mask is shifted against the answers"),
    ("mask-leak", "D", "in training, rows saw what stands behind them"),
    ("step-shift", "D", "later steps read or predict another position than in training"),
    ("rope-theta", "E", "RoPE turns by another theta than in training"),
    ("rope-scaling", "E", "RoPE scaling differs from training"),
    ("rope-schema", "E", "RoPE is written where a reader does not look for it"),
    ("rope-range", "E", "the draft's positions end before the texts do"),
    ("map-missing", "F", "the map of the draft vocabulary is missing"),
    ("map-broken", "F", "the map of the draft vocabulary breaks its invariants"),
    ("map-absolute", "F", "d2t holds token ids where offsets belong"),
    ("map-other", "F", "the map belongs to another head: its rows mean other tokens"),
    ("map-coverage", "F", "the draft vocabulary lacks many of the tokens of these texts"),
    ("head-missing", "G", "lm_head is missing"),
    ("head-foreign", "G", "lm_head is not the one that the draft was trained with"),
    ("embedding-foreign", "G", "the draft's embedding is not the one that it was trained with"),
    ("accepts-nothing", "G", "the server never accepts a proposal"),
    ("target-head", "G", "the target's embedding or head cannot be read where an engine looks for it"),
    ("config-broken", "H", "the config cannot be used"),
    ("weights-broken", "H", "the weights are missing or damaged"),
    ("keys-differ", "H", "tensors are missing, or not read"),
    ("shape-differs", "H", "a tensor has another shape than the config says"),
    ("files-mixed", "H", "config, wiring and weights were not written together"),
    ("other-target", "H", "the draft or dump was made for another target"),
    ("weights-untrained", "H", "a weight looks as if it was never trained or loaded"),
    ("tie-flag", "H", "tie_word_embeddings is set for a head of its own"),
    ("dtype-differs", "H", "tensors are stored in another number format than the config says"),
    ("not-loadable", "H", "the draft cannot be loaded as it is"),
    ("dump-broken", "I", "the dump is damaged or unfinished"),
    ("dump-changed", "I", "the dump is not what its manifest says"),
    ("dump-not-finite", "I", "the dump holds NaN, infinity or absurd values"),
    ("dump-empty-rows", "I", "rows of the dump are empty"),
    ("dump-other-rows", "I", "states of the dump belong to other texts or positions"),
    ("dump-short", "I", "states and tokens of the dump differ in number"),
    ("dump-wiring", "I", "dump and draft were not made for each other"),
    ("dump-size", "J", "the dump takes more disk than it needs"),
    ("tokenizer-differs", "K", "the tokenizer is not the one that dump or draft were made with"),
    ("template-differs", "K", "the chat template is not the one that dump or draft were made with"),
    ("bos-doubled", "K", "texts begin with the beginning-of-text token twice"),
    ("mask-rule", "K", "the loss mask does not mark the answers"),
    ("text-foreign", "K", "the answers are not the target's own text"),
    ("data-broken", "K", "the chats cannot be rendered"),
    ("dump-repeats", "K", "the same sample stands in the dump several times, or on both sides"),
    ("train-steps", "L", "the draft was trained for fewer steps than it proposes"),
    ("train-record", "L", "the training's own record says that it went wrong"),
    ("states-partial", "M", "states hold one rank's share only"),
    ("states-scattered", "M", "states hold one rank's rows or columns only"),
    ("context-lost", "M", "states of decoded tokens do not see the prompt"),
    ("quantization-config", "N", "the draft carries a quantisation config that is not its own"),
    ("scales-unread", "N", "scales of quantised weights are not read"),
    ("weights-not-finite", "N", "weights are NaN, infinite or out of range"),
    ("accepts-everything", "N", "the server accepts every proposal"),
    ("cache-variant", "O", "the result depends on how the caches were filled"),
    ("drift", "O", "acceptance falls while the server runs"),
    ("batch-variant", "P", "the result depends on what else is in the batch"),
    ("lossy", "Q", "the output is not the target's own"),
    ("lossy-sampling", "Q", "sampled tokens do not follow the target's distribution"),
    ("metric-impossible", "R", "a reported figure cannot be true"),
    ("metric-definition", "R", "the figure counts something else than acceptance per position"),
    ("served-below", "R", "the server accepts fewer tokens than this draft and target give"),
    ("target-changed", "S", "the target is not the one that the draft was trained on"),
    ("draft-stale", "S", "draft and dump were made on different weights of the target"),
)
CATALOG = {code: Entry(code, kind, title) for code, kind, title in _ROWS}

# What no test here can reach, and why. The doctor says so instead of being silent.
UNREACHABLE = {
    "L": "gradients, optimizer state and data order leave no trace in a finished draft; only what a trainer recorded is read",
    "M": "partial states are seen in captured states only: what a server feeds its draft needs a capture inside of it",
    "O": "what stands in a server's caches is seen by its answers only (--server); a log is read for drift",
    "P": "which requests a server puts into one batch is not seen from outside: many are asked at once (--server)",
    "Q": "a server's sampled tokens are tested at temperature 1 only (--server), not what top_k, top_p or min_p leave",
    "S": "whether a running server received new weights is not seen from outside; files are compared by their traces",
}


def entry(code: str) -> Entry:
    """`code` is one of ours: an unknown one is a bug."""
    assert code in CATALOG, f"no such code: {code}"
    return CATALOG[code]
