"""What a plan counts from config.json against the real thing: transformers' models, Eyas's own draft, the golden dumps."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from eyas.capture.job import bytes_per_token
from eyas.draft.config import DraftConfig
from eyas.draft.model import Eagle3Draft
from eyas.draft.unroll import unroll
from eyas.plan.config import Config, read_config
from eyas.plan.disk import OWN, dump_rows
from eyas.plan.draft import draft_cost
from eyas.plan.gpus import Fleet
from eyas.plan.memory import LOGIT_BYTES, Layout, layout_cost
from eyas.plan.shape import read_shape
from eyas.targets.families import FAMILIES
from eyas.train.fused import soft_head_loss
from eyas.train.loop import DEFAULT_DRAFT_VOCAB

MODEL_TYPES = sorted(name for family in FAMILIES for name in family.model_types)
GOLDEN = Path(__file__).parents[1] / "roundtrip" / "golden_dumps"
UNSAID = {"deepseek_v2": {"num_experts_per_tok": 6}}  # its class leaves open what every checkpoint says
# Keys as large as values: for others sdpa has no kernel on a CPU, and makes whole scores.
MLA = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 8}
OTHER_PARTS = ("vision", "visual", "projector", "merger")


def on_meta(config):
    """The model that transformers makes of a config, without its memory."""
    wrapped = hasattr(config, "text_config")
    loader = AutoModelForImageTextToText if wrapped else AutoModelForCausalLM
    with torch.device("meta"):
        return loader.from_config(config, dtype=torch.bfloat16)


def language_parameters(model) -> dict[str, int]:
    return {name: item.numel() for name, item in model.named_parameters() if not any(part in name for part in OTHER_PARTS)}


def counted(config):
    whole = config.to_dict()
    return read_shape(Config(config.model_type, "config.json", whole, whole.get("text_config", whole)))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family_is_counted_as_transformers_builds_it(model_type):
    """At the sizes that are the family's default; biases and the norms of single heads are what may be missing."""
    config = AutoConfig.for_model(model_type, **UNSAID.get(model_type, {}))
    shape, real = counted(config), language_parameters(on_meta(config))
    assert shape.parameters == pytest.approx(sum(real.values()), rel=3e-3)
    experts = sum(count for name, count in real.items() if ".experts." in name)
    assert shape.parts.experts == pytest.approx(experts, rel=3e-3)


@pytest.mark.parametrize(
    "values", [{"q_lora_rank": None}, {"n_shared_experts": 3}, {"first_k_dense_replace": 5}, {"num_experts_per_tok": 2}]
)
def test_variants_of_mla_and_experts_are_counted(values):
    config = AutoConfig.for_model("deepseek_v3", **{"num_hidden_layers": 6, "hidden_size": 1024, "vocab_size": 5000} | values)
    assert counted(config).parameters == pytest.approx(sum(language_parameters(on_meta(config)).values()), rel=3e-3)


def test_the_draft_is_counted_as_it_is_built():
    for name in ("Llama-3.1-8B", "Qwen3-235B-A22B", "DeepSeek-V3"):
        config = read_config(name)
        text = AutoConfig.for_model(**{key: value for key, value in config.model.items() if key != "quantization_config"})
        with torch.device("meta"):
            draft = Eagle3Draft(DraftConfig.from_target(text, num_taps=3, draft_vocab_size=DEFAULT_DRAFT_VOCAB))
        cost = draft_cost(read_shape(config), num_taps=3, draft_vocab_size=DEFAULT_DRAFT_VOCAB, ttt_steps=3, rows=2048)
        assert cost.parameters == sum(item.numel() for item in draft.parameters()), name


@pytest.mark.parametrize(("rows", "vocab"), [(128, 2000), (512, 500)])
def test_memory_of_a_training_batch_is_near_what_autograd_keeps(rows, vocab):
    """Every distinct storage that the forward saves for its backward, parameters left out."""
    config = AutoConfig.for_model(
        "llama", hidden_size=128, intermediate_size=384, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=4, vocab_size=4000
    )
    draft = Eagle3Draft(DraftConfig.from_target(config, num_taps=3, draft_vocab_size=vocab))
    draft.use_embedding(torch.nn.Embedding(4000, 128).requires_grad_(False))
    owned = {item.untyped_storage().data_ptr() for item in draft.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # held, so that no other can take its place
        return tensor

    states, probs = torch.randn(1, rows, 3 * 128).bfloat16(), torch.full((rows, vocab), 1 / vocab)
    label, known = torch.arange(rows).repeat(3), torch.ones(3 * rows, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        outputs = unroll(draft, torch.randint(0, 4000, (1, rows)), states, 3)
        read = torch.cat([draft.head_input(output.flatten(0, 1)) for output in outputs])
        soft_head_loss(read, draft.head_weight, probs, label, known)
    saved = sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in owned)
    cost = draft_cost(counted(config), num_taps=3, draft_vocab_size=vocab, ttt_steps=3, rows=rows)
    assert cost.activation_bytes == pytest.approx(saved + probs.nbytes, rel=0.35)


class PeakMemory(TorchDispatchMode):
    """Bytes of the distinct storages that live at once, those of `known` left out."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self._held = [tensor.untyped_storage() for tensor in known]
        self._seen = weakref.WeakSet(self._held)
        self._now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self._seen:
                storage = tensor.untyped_storage()
                self._seen.add(storage)
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, count: int) -> None:
        self._now -= count


@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        ("llama", {}),
        ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "head_dim": 32}),
        (
            "deepseek_v3",
            {
                "n_routed_experts": 8,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 128,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
            }
            | MLA,
        ),
    ],
)
def test_activations_of_a_capture_are_near_what_a_forward_holds(model_type, values):
    """Three taps kept, no cache, sdpa: the peak of a real forward lies between half and twice the plan's figure."""
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = AutoConfig.for_model(model_type, **sizes | {"vocab_size": 1000} | values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tapped = []
    for layer in model.model.layers[:3]:
        layer.register_forward_hook(lambda module, inputs, output: tapped.append(output[0] if isinstance(output, tuple) else output))
    with torch.no_grad(), PeakMemory([*model.parameters(), *model.buffers()]) as memory:
        model.model(torch.randint(0, 1000, (1, 512)), use_cache=False)
    plain = SimpleNamespace(bits=dict.fromkeys(vars(counted(config).parts), 16))
    cost = layout_cost(counted(config), plain, Layout(1), Fleet.parse("H100"), tokens=512, num_taps=3)
    assert len(tapped) == 3
    assert memory.peak / 2 < cost.activation_bytes - LOGIT_BYTES < 2 * memory.peak


@pytest.mark.parametrize(
    ("folder", "row", "dtype"),
    [
        ("speculators", "speculators", "bf16"),
        ("speculators-fp8", "speculators", "fp8"),
        ("speculators-pt", "speculators-pt", "bf16"),
        ("specforge", "specforge", "bf16"),
        ("modelopt", "modelopt", "bf16"),
        ("vllm", "vllm", "bf16"),
        ("automodel", "automodel", "bf16"),
    ],
)
def test_bytes_of_a_token_are_those_of_the_golden_dumps(folder, row, dtype):
    """Keys and dtypes there are those of the projects: three taps of width 4, six draft tokens, texts of 5 and 3 tokens."""
    tensors = [tensor for file in sorted((GOLDEN / folder).glob("*.*")) if file.suffix != ".json" for tensor in tensors_of(file)]
    positions = 10 if folder == "automodel" else 8  # it pads
    shape = SimpleNamespace(hidden_size=4)
    expected = next(item for item in dump_rows(shape, 3, 6) if (item.format, item.dtype) == (row, dtype))
    assert sum(tensor.nbytes for tensor in tensors) == expected.bytes_per_token * positions


def tensors_of(file: Path) -> list[torch.Tensor]:
    values = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
    flat = [part for value in values.values() for part in (value if isinstance(value, list) else [value])]
    return [value for value in flat if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bytes_of_a_token_are_those_of_capture(dtype):
    target = SimpleNamespace(hidden_size=576, dtype=dtype)
    rows = {item.dtype: item.bytes_per_token for item in dump_rows(target, 3, 8192) if item.format == OWN}
    assert rows["bf16" if dtype == torch.bfloat16 else "fp32"] == bytes_per_token(target, 3)
