"""How large a model is, from its config.json alone: parameters by part, what a token costs, what it leaves in the cache.

    embedding  V·H, read by row; the head is another V·H unless it is tied
    attention  H·(N·D) + (N·E)·H for queries and outputs, 2·H·K·D for keys and values
      MLA      H·r_q + r_q·N·D for queries, H·(r_kv + d_rope) down, r_kv·N·(d_nope + E) up, N·E·H out
    MLP        3·H·I with a gate, 2·H·I without; experts the same, each; a router H·X

Biases and the norms of single heads are left out: under 0.3 % of every family here (the tests hold the sums against
transformers' own models).

Legend: H hidden size, V vocabulary, N query heads, K key/value heads, D size of a key, E of a value, I of an MLP,
X experts, r low rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from eyas.errors import UserError
from eyas.plan.config import Config
from eyas.targets.families import FAMILIES
from eyas.targets.sizes import MOST_LAYERS

_ALIKE = {"kimi_k2": "deepseek_v3"}  # the same architecture under a name that transformers does not have
_PLAIN_MLP = ("gpt2", "gpt_neox", "starcoder2", "arcee")
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "starcoder2", "smollm3", "ernie4_5_moe", "gpt2")  # if unsaid
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")


@dataclass(frozen=True)
class Parts:
    """Parameters by how they are spread over GPUs. `key_value`: the projections that grouped queries share; `latent`: MLA's
    way down and the sparse indexer, which every rank has whole; `small`: norms and routers."""

    embedding: int
    head: int
    attention: int
    key_value: int
    latent: int
    dense: int
    shared: int
    experts: int
    small: int

    @property
    def total(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True)
class Shape:
    """`latent_size`: what MLA keeps of a token and layer (with the indexer's key), 0 without MLA. Experts are 0 in a dense model."""

    name: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    latent_size: int
    num_experts: int
    experts_per_token: int
    expert_size: int
    tied: bool
    parts: Parts

    @property
    def parameters(self) -> int:
        return self.parts.total

    @property
    def matrix_parameters(self) -> float:
        """Those that one token is multiplied with: all but the embedding's table, and the chosen experts only."""
        chosen = self.parts.experts * self.experts_per_token / self.num_experts if self.num_experts else 0.0
        head = self.parts.head or self.vocab_size * self.hidden_size
        return head + chosen + self.parts.total - self.parts.embedding - self.parts.head - self.parts.experts

    @property
    def cache_size(self) -> int:
        """Numbers that a token leaves in one layer's cache: keys and values, or MLA's latent."""
        return self.latent_size or self.num_kv_heads * (self.key_size + self.value_size)

    def flops_per_token(self, length: int) -> float:
        """Of one forward over texts of `length`: two a parameter, and causal attention to length/2 tokens before on average."""
        attention = self.num_layers * self.num_heads * (self.key_size + self.value_size) * length
        return 2 * self.matrix_parameters + attention


def read_shape(config: Config) -> Shape:
    """Raises UserError for a family that Eyas does not know, layers that are no attention, or sizes that are missing."""
    kind = _known_type(config)
    _refuse_other_layers(config)
    layers, hidden = config.positive("num_hidden_layers", "n_layer"), config.positive("hidden_size", "n_embd")
    if layers > MOST_LAYERS:
        raise UserError(f"{config.where}: no model has so many layers", got=layers, allowed=f"1 to {MOST_LAYERS:,}")
    heads = config.positive("num_attention_heads", "n_head")
    intermediate = config.positive("intermediate_size", "n_inner", default=4 * hidden)
    head_size = config.positive("head_dim", default=max(1, hidden // heads))
    moe_layers, experts = _moe_layers(config, layers), config.number(*_NUM_EXPERTS, default=0)
    expert_size = config.positive("moe_intermediate_size", default=intermediate) if experts else 0
    per_token = config.positive("num_experts_per_tok", "moe_k") if experts else 0
    if per_token > experts:
        raise UserError(f"{config.where}: a token cannot go to more experts than there are", got=per_token, allowed=experts)
    vocab, matrices = config.positive("vocab_size"), 2 if kind in _PLAIN_MLP else 3
    tied = _is_tied(config, kind)
    attention = _mla(config, hidden, heads) if config.model.get("kv_lora_rank") else _grouped(config, hidden, heads, head_size)
    return Shape(
        name=config.name,
        model_type=config.model_type,
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=vocab,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=attention.num_kv_heads,
        key_size=attention.key_size,
        value_size=attention.value_size,
        latent_size=attention.latent_size,
        num_experts=experts,
        experts_per_token=per_token,
        expert_size=expert_size,
        tied=tied,
        parts=Parts(
            embedding=vocab * hidden,
            head=0 if tied else vocab * hidden,
            attention=layers * attention.heads,
            key_value=layers * attention.key_value,
            latent=layers * attention.latent,
            dense=(layers - moe_layers) * matrices * hidden * intermediate,
            shared=moe_layers * matrices * hidden * _shared_size(config, expert_size),
            experts=moe_layers * experts * matrices * hidden * expert_size,
            small=layers * 2 * hidden + hidden + moe_layers * experts * hidden + config.number("n_positions", default=0) * hidden,
        ),
    )


_NUM_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


@dataclass(frozen=True)
class _Attention:
    """Of one layer: sizes, and parameters that follow the heads, that grouped heads share, and that no rank can split."""

    num_kv_heads: int
    key_size: int
    value_size: int
    latent_size: int
    heads: int
    key_value: int
    latent: int


def _grouped(config: Config, hidden: int, heads: int, size: int) -> _Attention:
    kv_heads = config.positive("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise UserError(f"{config.where}: query heads do not divide evenly over key/value heads", got=f"{heads} and {kv_heads}")
    return _Attention(kv_heads, size, size, 0, 2 * hidden * heads * size, 2 * hidden * kv_heads * size, 0)


def _mla(config: Config, hidden: int, heads: int) -> _Attention:
    rank, rope = config.positive("kv_lora_rank"), config.positive("qk_rope_head_dim")
    nope, value = config.positive("qk_nope_head_dim"), config.positive("v_head_dim")
    query_rank = config.number("q_lora_rank", default=0)
    queries = (query_rank or hidden) * heads * (nope + rope)
    down = hidden * (rank + rope) + hidden * query_rank
    index_heads, index_size = config.number("index_n_heads", default=0), config.number("index_head_dim", default=0)
    if index_heads:  # DeepSeek-V3.2's indexer: its queries, one key a token, a weight a head
        down += query_rank * index_heads * index_size + hidden * (index_size + index_heads)
    kept = rank + rope + (index_size if index_heads else 0)
    return _Attention(heads, nope + rope, value, kept, queries + rank * heads * (nope + value) + heads * value * hidden, 0, down)


def _known_type(config: Config) -> str:
    known = {name for family in FAMILIES for name in family.model_types} | set(_ALIKE)
    outer, kind = str(config.whole.get("model_type")), config.model_type
    if kind not in known and outer not in known:
        raise UserError(
            f"{config.where} is of a family that cannot be counted",
            got=f"model_type {kind!r}",
            allowed=", ".join(sorted(known)),
            remedy="give the config of a model that is built alike, or add the family to eyas/targets/families.py",
        )
    return _ALIKE.get(kind, kind)


def _refuse_other_layers(config: Config) -> None:
    others = sorted({str(item) for item in config.items("layer_types")} - set(_ATTENTION))
    if others:
        raise UserError(f"{config.where}: these layers are no attention, and are not counted", got=others, allowed=", ".join(_ATTENTION))


def _moe_layers(config: Config, layers: int) -> int:
    """How many layers have routed experts. The rules are those of transformers' DeepSeek, Qwen, GLM and Ernie models."""
    if not config.number(*_NUM_EXPERTS, default=0):
        return 0
    kinds = config.items("mlp_layer_types")
    if kinds:
        return kinds.count("sparse")
    first = config.number("first_k_dense_replace", "moe_layer_start_index", default=0)
    last = config.model.get("moe_layer_end_index")
    last = layers - 1 if last is None or last == -1 else config.number("moe_layer_end_index")
    step = config.positive("decoder_sparse_step", "moe_layer_interval", default=1)
    every = config.positive("moe_layer_freq", default=1)
    dense = config.items("mlp_only_layers")
    return sum(first <= n <= last and (n + 1) % step == 0 and n % every == 0 and n not in dense for n in range(layers))


def _shared_size(config: Config, expert_size: int) -> int:
    """The width of the MLP that every token goes through beside its experts."""
    shared = config.number("n_shared_experts", "moe_num_shared_experts", default=0)
    return shared * expert_size or config.number("shared_expert_intermediate_size", default=0)


def _is_tied(config: Config, kind: str) -> bool:
    for part in (config.whole, config.model):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return kind in _TIED
