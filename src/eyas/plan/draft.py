"""What the draft of `eyas train` costs: parameters, arithmetic a row, and memory on the GPU that trains it.

It is a Llama-style head as wide as the target (DraftConfig.from_target, which the tests hold this against):

    fc n·H·H    attention 2H·(N·D + 2·K·D) + N·D·H    MLP 3·H·I    norms 4·H    head H·V

Legend: n taps, H hidden size, N query heads, K key/value heads, D head size, I intermediate size, V draft vocabulary,
S steps of the unroll, R rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.plan.shape import Shape

TRAINED_BYTES = 18  # a parameter: weight, gradient and AdamW's two moments in fp32, and a bf16 copy for the step


@dataclass(frozen=True)
class DraftCost:
    """`flops_per_row`: forward and backward over all steps, and the teacher's logits.

    `score_bytes`: the part of `activation_bytes` that grows with the square of a text's length.
    """

    fc: int
    attention: int
    mlp: int
    head: int
    norms: int
    flops_per_row: float
    trained_bytes: int
    frozen_bytes: int
    activation_bytes: int
    score_bytes: int

    @property
    def parameters(self) -> int:
        return self.fc + self.attention + self.mlp + self.head + self.norms

    @property
    def memory_bytes(self) -> int:
        """Of the draft by itself: what it trains, the target's embedding and head beside it, and a batch."""
        return self.trained_bytes + self.frozen_bytes + self.activation_bytes


def draft_cost(shape: Shape, *, num_taps: int, draft_vocab_size: int, ttt_steps: int, rows: int) -> DraftCost:
    """`rows`: positions of a batch, all of them trained: an upper bound, since a chat's prompt is not."""
    hidden, wide = shape.hidden_size, num_taps * shape.hidden_size
    heads, kv_heads, size = _heads(shape)
    attention = 2 * hidden * size * (heads + 2 * kv_heads) + heads * size * hidden
    mlp, head = 3 * hidden * shape.intermediate_size, hidden * draft_vocab_size
    trained = 6 * (wide * hidden + ttt_steps * (attention + mlp + head)) + 2 * head
    parameters = wide * hidden + attention + mlp + head + 4 * hidden
    # Numbers of two bytes that autograd keeps of a row and step: the inputs of q, k and v (6 H), of norms in fp32 (8 H), of
    # projections and residuals (7 H), queries, keys and values before and after RoPE, and the MLP's four wide ones.
    layer = 21 * hidden + 2 * (heads + kv_heads) * size + 4 * shape.intermediate_size
    scores = rows * ttt_steps * 6 * heads * rows  # weights of every row on every other, in fp32 and in bf16
    kept = 2 * (wide + ttt_steps * layer) + 4 * draft_vocab_size * (1 + ttt_steps)  # the teacher's and the loss's, in fp32
    return DraftCost(
        fc=wide * hidden,
        attention=attention,
        mlp=mlp,
        head=head,
        norms=4 * hidden,
        flops_per_row=trained,
        trained_bytes=TRAINED_BYTES * parameters,
        frozen_bytes=2 * hidden * (shape.vocab_size + draft_vocab_size),
        activation_bytes=rows * kept + scores,
        score_bytes=scores,
    )


def _heads(shape: Shape) -> tuple[int, int, int]:
    """Those of the target, or heads of 64 where it has MLA and no plain heads to copy."""
    if not shape.latent_size:
        return shape.num_heads, shape.num_kv_heads, shape.key_size
    size = min(64, shape.hidden_size)
    return shape.hidden_size // size, shape.hidden_size // size, size
