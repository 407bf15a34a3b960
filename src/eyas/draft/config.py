"""The shape of a draft, and how it is derived from a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from transformers import LlamaConfig

from eyas.errors import UserError, in_words

FORMAT = 2  # format 1 knew Llama-style heads that share the target's embedding only
LmHeadSource = Literal["draft", "embedding", "target"]
Head = Literal["llama", "mla"]


@dataclass(frozen=True)
class MlaConfig:
    """Sizes of a multi-head latent attention, as in DeepSeek-V2 and V3.

    `q_lora_rank` is None where queries are projected in one go. `rope_interleaved`: RoPE turns neighbouring columns
    (0, 1), (2, 3), ... of the rotary slice, not column i and i + half. `softmax_factor` multiplies the scores beside
    1 / sqrt(qk_nope_head_dim + qk_rope_head_dim): YaRN's mscale squared where a project applies it.
    """

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    rope_interleaved: bool = True
    softmax_factor: float = 1.0

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @staticmethod
    def of(text_config: Any) -> MlaConfig:
        """The target's own latent attention. Raises UserError if it has none."""
        if getattr(text_config, "kv_lora_rank", None) is None:
            raise UserError(
                "an MLA head takes its sizes from the target's latent attention, and this target has none",
                got=text_config.model_type,
                allowed="--head llama, or a target with MLA (DeepSeek, Kimi)",
            )
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale  # brings torch, which configs do without

        return MlaConfig(
            kv_lora_rank=text_config.kv_lora_rank,
            qk_nope_head_dim=text_config.qk_nope_head_dim,
            qk_rope_head_dim=text_config.qk_rope_head_dim,
            v_head_dim=text_config.v_head_dim,
            q_lora_rank=text_config.q_lora_rank,
            rope_interleaved=getattr(text_config, "rope_interleave", True),  # DeepSeek-V3.2 has no choice
            softmax_factor=yarn_apply_mscale(text_config.rope_parameters, 1.0),
        )


@dataclass(frozen=True)
class DraftConfig:
    """Sizes and switches of an EAGLE-3 head with one layer; `mla` is None if its attention is Llama-style.

    `norm_before_fc`: one RMSNorm over the concatenated taps. `fc_norm`: one RMSNorm a tap. `norm_before_residual`: the
    residual is the normed hidden state. `norm_output`: the state fed back into the next step is the normed one.
    `own_embedding`: token embeddings come with the draft. `lm_head_source`: a head of its own, its own embedding once
    more, or the target's head. With `mla`, every head has keys and values of its own, and `head_dim` is that of the keys.
    """

    hidden_size: int
    target_hidden_size: int
    num_taps: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    mla: MlaConfig | None = None
    own_embedding: bool = False
    lm_head_source: LmHeadSource = "draft"
    fc_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def full_vocabulary(self) -> bool:
        return self.draft_vocab_size == self.vocab_size

    @property
    def rope_dim(self) -> int:
        """How many columns of a head RoPE turns."""
        return self.head_dim if self.mla is None else self.mla.qk_rope_head_dim

    def check(self, where: str) -> None:
        """Raises UserError for a combination that no head has."""
        mla, wide = self.mla, self.hidden_size != self.target_hidden_size
        wrong = [
            (self.draft_vocab_size > self.vocab_size, "the draft knows more tokens than the target"),
            (self.num_attention_heads % self.num_key_value_heads != 0, "query heads do not divide evenly over key/value heads"),
            (self.rope_dim % 2 != 0, "RoPE turns pairs of columns, but their number is odd"),
            (wide and not self.own_embedding, "a draft of another width than the target needs an embedding of its own"),
            (self.lm_head_source == "embedding" and not self.own_embedding, "lm_head is tied to an embedding that the draft has not"),
            (self.lm_head_source != "draft" and not self.full_vocabulary, "a shared lm_head speaks of the whole vocabulary only"),
            (self.lm_head_source == "target" and wide, "the target's lm_head reads another width"),
            (mla is not None and self.num_key_value_heads != self.num_attention_heads, "MLA has as many key heads as query heads"),
            (mla is not None and self.head_dim != mla.qk_head_dim, "head_dim is not the MLA head's qk_nope_head_dim + qk_rope_head_dim"),
            (mla is not None and (self.attention_bias or self.qk_norm), "an MLA head has neither biases nor q_norm and k_norm"),
        ]
        found = [words for is_wrong, words in wrong if is_wrong]
        if found:
            raise UserError(f"{where}: no draft has these settings together", got="; ".join(found))

    @staticmethod
    def from_target(
        text_config: Any,
        *,
        num_taps: int,
        draft_vocab_size: int,
        head: str = "llama",
        hidden_size: int | None = None,
        **switches: Any,
    ) -> DraftConfig:
        """A draft with the target's heads and RoPE, as wide as the target unless `hidden_size` says otherwise.

        A target with MLA or partial RoPE has no plain heads to copy; its Llama-style draft gets heads of 64 (or fewer)
        and the target's theta. One of another width has an embedding of its own.

        Args:
            head: "llama", or "mla" for the target's own latent attention.

        Raises:
            UserError: another head, an MLA head for a target without MLA, settings that no draft has together.
        """
        if head not in get_args(Head):
            raise UserError("unknown --head", got=head, allowed=", ".join(get_args(Head)), remedy="write --head llama, or leave it out")
        wide = int(text_config.hidden_size)
        hidden = hidden_size or wide
        mla = MlaConfig.of(text_config) if head == "mla" else None
        config = DraftConfig(
            hidden_size=hidden,
            target_hidden_size=wide,
            num_taps=num_taps,
            intermediate_size=int(getattr(text_config, "intermediate_size", None) or 4 * wide) * hidden // wide,
            **(_plain_heads(text_config, hidden) if mla is None else _latent_heads(text_config, mla)),
            vocab_size=int(text_config.vocab_size),
            draft_vocab_size=draft_vocab_size,
            max_position_embeddings=int(text_config.max_position_embeddings),
            rms_norm_eps=float(getattr(text_config, "rms_norm_eps", 1e-5)),
            own_embedding=hidden != wide,
            **switches,
        )
        config.check("--head and --hidden-size")
        return config

    def layer_config(self) -> LlamaConfig:
        """The config of the parts that are transformers': MLP, RoPE and cache. Heads are the attention's own business."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=self.rope_dim,
            mlp_bias=self.mlp_bias,
            hidden_act=self.hidden_act,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope_parameters),
            max_position_embeddings=self.max_position_embeddings,
            vocab_size=self.vocab_size,
        )

    def to_json(self) -> dict[str, Any]:
        return {"eyas_draft_format": FORMAT, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(value: Mapping[str, Any], where: str) -> DraftConfig:
        """Raises UserError for another format, for unknown, missing or ill-typed keys, and as `check` does."""
        number = value.get("eyas_draft_format")
        if number not in (1, FORMAT):
            raise UserError(f"{where} is not an Eyas draft", got=f"eyas_draft_format = {number}", allowed=f"1 or {FORMAT}")
        given = {key: part for key, part in value.items() if key != "eyas_draft_format"}
        _refuse_other_keys(DraftConfig, given, where, without=_SINCE_FORMAT_2 if number == 1 else ())
        mla = given.get("mla")
        if isinstance(mla, Mapping):
            _refuse_other_keys(MlaConfig, mla, f"{where}: mla")
            given["mla"] = MlaConfig(**mla)
        elif mla is not None:
            raise UserError(f"{where}: mla has the wrong type or value", got=repr(mla)[:80], allowed="an object or null")
        config = DraftConfig(**given)
        config.check(where)
        return config


_SINCE_FORMAT_2 = ("mla", "own_embedding", "lm_head_source", "fc_bias", "attention_bias", "mlp_bias", "qk_norm")
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "bool": (bool,),
    "float": (int, float),
    "str": (str,),
    "LmHeadSource": (str,),
    "dict[str, Any]": (dict,),
}


def _refuse_other_keys(cls: Any, value: Mapping[str, Any], where: str, without: Collection[str] = ()) -> None:
    """Raises UserError unless `value` has exactly the fields of the dataclass but `without`, each of its type."""
    fields = {item.name: str(item.type) for item in dataclasses.fields(cls) if item.name not in without}
    unknown, missing = sorted(set(value) - set(fields)), sorted(set(fields) - set(value))
    if unknown or missing:
        raise UserError(
            f"{where}: unknown or missing keys", got=f"unknown {in_words(unknown)}; missing {in_words(missing)}", allowed=sorted(fields)
        )
    for name, kind in fields.items():
        part = value[name]
        allowed = _KINDS.get(kind)
        if allowed is None:  # a part with fields of its own
            continue
        wrong = not isinstance(part, allowed) or (isinstance(part, bool) and kind != "bool")
        wrong = wrong or (kind.startswith("int") and part is not None and not 1 <= part < 2**31)
        wrong = wrong or (kind == "float" and not 0 < part < 1e30)
        wrong = wrong or (kind == "LmHeadSource" and part not in get_args(LmHeadSource))
        if wrong:
            raise UserError(f"{where}: {name} has the wrong type or value", got=repr(part)[:80], allowed=kind)


def _plain_heads(text_config: Any, hidden: int) -> dict[str, Any]:
    head_dim = int(getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads)
    heads = int(text_config.num_attention_heads)
    kv_heads = int(getattr(text_config, "num_key_value_heads", None) or heads)
    rope = dict(_rope_parameters(text_config))
    if getattr(text_config, "kv_lora_rank", None) is not None or rope.get("partial_rotary_factor", 1.0) != 1.0:
        head_dim = min(64, hidden)
        heads = kv_heads = max(1, hidden // head_dim)
        rope = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "rope_parameters": rope}


def _latent_heads(text_config: Any, mla: MlaConfig) -> dict[str, Any]:
    """As many as the target has, with its RoPE whole: YaRN also scales an MLA head's scores."""
    heads = int(text_config.num_attention_heads)
    rope = dict(_rope_parameters(text_config))
    return {"mla": mla, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": mla.qk_head_dim, "rope_parameters": rope}


def _rope_parameters(text_config: Any) -> Mapping[str, Any]:
    """RoPE of the target's full-attention layers; no default for theta, since a guessed one is silently wrong."""
    rope = getattr(text_config, "rope_parameters", None)
    if isinstance(rope, Mapping) and "full_attention" in rope:  # models with two kinds of layers keep one set a kind
        rope = rope["full_attention"]
    if not isinstance(rope, Mapping) or rope.get("rope_theta") is None:
        raise UserError(
            "the target's config names no rope_theta", got=rope, remedy="add rope_parameters with rope_theta to its config.json"
        )
    return rope
