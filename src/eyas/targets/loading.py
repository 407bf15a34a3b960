"""From a folder or a hub id to a `Target`, with an error in words for everything that can be wrong with a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig

from eyas.errors import UserError
from eyas.files import read_json, sha256_text
from eyas.targets.cpu_linear import can_pack, pack_linears
from eyas.targets.families import family_of
from eyas.targets.target import Target

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def resolve_device(name: str) -> torch.device:
    """`auto` is cuda where there is one. Raises UserError for an unknown or absent device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UserError("unknown --device", got=name, allowed="auto, cpu, cuda, cuda:N")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "--device cuda, but torch sees no GPU",
            got=name,
            allowed="auto, cpu",
            remedy="install a CUDA build of torch, or use --device cpu",
        )
    return torch.device(name)


def resolve_dtype(name: str) -> torch.dtype:
    full = _DTYPE_NAMES.get(name, name)
    if full not in DTYPES:
        raise UserError("unknown --dtype", got=name, allowed="float32 (fp32), bfloat16 (bf16), float16 (fp16)")
    return DTYPES[full]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load_config(target: str, trust_remote_code: bool = False) -> Any:
    """Raises UserError for a missing folder, a missing or broken config.json, or an unreachable hub."""
    folder = Path(target)
    if folder.exists() or target.startswith((".", "/", "~")):
        if not folder.is_dir():
            raise UserError(
                f"target folder does not exist: {target}", remedy="give a folder with config.json, or pull one: eyas model list"
            )
        read_json(folder / "config.json", "the target's config.json")
    try:
        return AutoConfig.from_pretrained(target, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read the target's config: {target}",
            got=_first_line(error),
            remedy="give a local folder or a hub id; see eyas model list",
        ) from error


def load_tokenizer(target: str, trust_remote_code: bool = False) -> Any:
    """Raises UserError if the tokenizer's files are missing or broken."""
    try:
        return AutoTokenizer.from_pretrained(target, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raises bare Exception for a damaged tokenizer.json
        raise UserError(
            f"cannot load the target's tokenizer: {target}",
            got=_first_line(error),
            remedy="copy tokenizer.json and tokenizer_config.json whole",
        ) from error


def load_target(target: str, *, device: torch.device, dtype: torch.dtype, trust_remote_code: bool = False, fast: bool = True) -> Target:
    """Load for reading only.

    Args:
        fast: on the CPU in bf16, lay linear weights out for oneDNN (same values up to the order of summation).

    Raises:
        UserError: unknown family, missing, truncated, spare or missing weights, no tokenizer.
    """
    config = load_config(target, trust_remote_code)
    family = family_of(config.model_type)
    if Path(target).is_dir():
        _check_weight_files(Path(target))
    loader = AutoModelForImageTextToText if family.backbone.endswith("language_model") else AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(target, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"cannot load the target's weights: {target}",
            got=_first_line(error),
            remedy="copy the folder again; compare file sizes with the source",
        ) from error
    missing, mismatched = sorted(info["missing_keys"]), sorted(map(str, info["mismatched_keys"]))
    unread = sorted(info["unexpected_keys"])
    if missing or mismatched or unread:
        raise UserError(
            f"the weights of {target} do not fit its config.json",
            got=f"missing {_some(missing)}; unread {_some(unread)}; of another shape {_some(mismatched)}",
            remedy="config.json and weights must come from the same checkpoint",
        )
    model.requires_grad_(False)
    model.to(device).eval()
    tokenizer = load_tokenizer(target, trust_remote_code)
    loaded = Target(
        name=_name_of(target),
        model=model,
        tokenizer=tokenizer,
        family=family,
        device=device,
        dtype=dtype,
        tokenizer_hash=tokenizer_hash(tokenizer),
        chat_template_hash=sha256_text(tokenizer.chat_template) if isinstance(tokenizer.chat_template, str) else None,
        stop_ids=_stop_ids(model.generation_config, tokenizer),
    )
    if fast and can_pack(device, dtype):
        pack_linears(model, keep=(loaded.lm_head,))
    return loaded


def tokenizer_hash(tokenizer: Any) -> str:
    """Equal for tokenizers that give every token the same id, whatever else their files say."""
    return sha256_text(json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True))


def _stop_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids at which transformers' own `generate` stops."""
    ids = generation.eos_token_id if generation is not None else None
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


def load_stop_ids(target: str, tokenizer: Any, trust_remote_code: bool = False) -> tuple[int, ...]:
    """What `Target.stop_ids` will be, without loading the weights."""
    try:
        generation = GenerationConfig.from_pretrained(target)
    except OSError:  # without a generation_config.json the model's config says it
        generation = GenerationConfig.from_model_config(load_config(target, trust_remote_code))
    return _stop_ids(generation, tokenizer)


def _check_weight_files(folder: Path) -> None:
    """Every shard named by the index is there and whole; a cut-off file is found before anything is loaded."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index, "the weights' index").get("weight_map", {}).values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise UserError(
            f"no safetensors weights in {folder}",
            allowed="model.safetensors, or an index with its shards",
            remedy="convert the checkpoint: only safetensors are read",
        )
    for name in names:
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"weights file is missing or damaged: {folder / name}", got=_first_line(error), remedy="copy the file again"
            ) from error


def _name_of(target: str) -> str:
    return Path(target).resolve().name if Path(target).is_dir() else target


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _some(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
