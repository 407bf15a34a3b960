"""From a folder or a hub id to a `Target`, with an error in words for everything that can be wrong with a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
)
from transformers.utils.logging import disable_progress_bar

from eyas.errors import UserError, WeightsError
from eyas.files import read_json, read_weight_map, sha256_text
from eyas.targets.cpu_linear import can_pack, pack_linears
from eyas.targets.families import family_of
from eyas.targets.layout import SINGLE, Layout
from eyas.targets.sharding import distributed_config, own_part
from eyas.targets.sizes import check_sizes, check_written
from eyas.targets.target import Target
from eyas.targets.tokenizer_files import require_whole_tokenizer

_OTHER_NAMES = {"kimi_k2": "deepseek_v3"}  # published under a name of their own, with code that is transformers' by now
disable_progress_bar()  # of transformers, which draws one for every load and save between our own lines


def load_config(target: str, trust_remote_code: bool = False) -> Any:
    """Raises UserError for a missing folder, a missing or broken config.json, or an unreachable hub."""
    folder = Path(target)
    if folder.exists() or target.startswith((".", "/", "~")):
        if not folder.is_dir():
            problem = "is a file, not a target's folder" if folder.exists() else "does not exist"
            raise UserError(f"target folder {problem}: {target}", remedy="give a folder with config.json, or pull one: eyas model list")
        read_json(folder / "config.json", "the target's config.json")
    else:
        _check_hub(target)
    try:
        written, _ = PreTrainedConfig.get_config_dict(target)
        check_written(written, target)
        config = _own_config(target, written) if not trust_remote_code else AutoConfig.from_pretrained(target, trust_remote_code=True)
    except UserError:
        raise
    except Exception as error:  # each model's config class complains of odd values in its own way
        raise UserError(
            f"cannot read the target's config: {target}",
            got=_first_line(error),
            remedy="give a local folder or a hub id; see eyas model list",
        ) from error
    check_sizes(config, target)
    return config


def _own_config(target: str, written: dict[str, Any]) -> Any:
    """What transformers itself makes of config.json."""
    known_as = _OTHER_NAMES.get(str(written.get("model_type")))
    if known_as is None:
        return AutoConfig.from_pretrained(target)
    return CONFIG_MAPPING[known_as].from_dict({**written, "model_type": known_as})


def _check_hub(target: str) -> None:
    """One question, not repeated: without a network the hub's own code asks for minutes. Raises UserError if nobody answers."""
    try:
        if HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(target, "config.json"), str):
            return
        get_hf_file_metadata(hf_hub_url(target, "config.json"), timeout=10)
    except (HfHubHTTPError, HFValidationError):  # it answered, or need not be asked: transformers says what is wrong
        return
    except Exception as error:
        raise UserError(
            f"there is no folder {target}, and the hub does not answer",
            got=_first_line(error),
            allowed="a folder with config.json, or a hub id and a network",
            remedy="check the path; or pull a target that needs no hub: eyas model list",
        ) from error


def load_tokenizer(target: str, trust_remote_code: bool = False) -> Any:
    """Raises UserError if the tokenizer's files are missing or broken, or say too little without the code beside them."""
    if not trust_remote_code:
        require_whole_tokenizer(target)
    try:
        return AutoTokenizer.from_pretrained(target, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raises bare Exception for a damaged tokenizer.json
        raise UserError(
            f"cannot load the target's tokenizer: {target}",
            got=_first_line(error),
            remedy="copy tokenizer.json and tokenizer_config.json whole",
        ) from error


def load_target(
    target: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
    fast: bool = True,
    layout: Layout = SINGLE,
) -> Target:
    """Load for reading only.

    Args:
        fast: on the CPU in bf16, lay linear weights out for oneDNN (same values up to the order of summation).
        layout: over which ranks; each of them calls this, and gets its share.

    Raises:
        UserError: unknown family, missing, truncated, spare or missing weights, no tokenizer.
    """
    config = load_config(target, trust_remote_code)
    family = family_of(config.model_type)
    _check_generation_config(target)
    if Path(target).is_dir():
        _check_weight_files(Path(target))
    shares = distributed_config(config, family, layout)
    model = _load_weights(target, config, dtype=dtype, trust_remote_code=trust_remote_code, shares=shares)
    model.requires_grad_(False)
    layout.limit_waits()
    if shares is None:
        model.to(device)
    model.eval()
    _check_finite(model, target)
    tokenizer = load_tokenizer(target, trust_remote_code)
    loaded = Target(
        name=_name_of(target),
        model=model,
        tokenizer=tokenizer,
        family=family,
        device=device,
        dtype=dtype,
        tokenizer_hash=tokenizer_hash(tokenizer),
        chat_template_hash=chat_template_hash(tokenizer),
        stop_ids=_stop_ids(model.generation_config, tokenizer),
        layout=layout,
    )
    if fast and shares is None and can_pack(device, dtype):
        pack_linears(model, keep=(loaded.lm_head,))
    return loaded


def _load_weights(target: str, config: Any, *, dtype: torch.dtype, trust_remote_code: bool, shares: Any) -> Any:
    """transformers' model with every weight read. Raises UserError for weights that are broken, missing, spare or of other shapes."""
    split = {} if shares is None else {"distributed_config": shares}
    try:
        model, info = auto_class(config.model_type).from_pretrained(
            target,
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
            **split,
        )
    except Exception as error:  # made from a config and files that may say anything
        raise WeightsError(
            f"cannot load the target's weights: {target}",
            got=_first_line(error),
            remedy="copy the folder again; compare file sizes with the source",
        ) from error
    missing, mismatched = sorted(info["missing_keys"]), sorted(map(str, info["mismatched_keys"]))
    unread = sorted(info["unexpected_keys"])
    if missing or mismatched or unread:
        raise WeightsError(
            f"the weights of {target} do not fit its config.json",
            got=f"missing {_some(missing)}; unread {_some(unread)}; of another shape {_some(mismatched)}",
            remedy="config.json and weights must come from the same checkpoint",
        )
    return model


def auto_class(model_type: str) -> Any:
    """The transformers class that makes this family's models; a language model inside a wrapper comes with the wrapper."""
    return AutoModelForImageTextToText if family_of(model_type).is_wrapped else AutoModelForCausalLM


def tokenizer_hash(tokenizer: Any) -> str:
    """Equal for tokenizers that give every token the same id, whatever else their files say."""
    return sha256_text(json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True))


def chat_template_hash(tokenizer: Any) -> str | None:
    """Of the template that chats are rendered with, the default one of several; None if there is none."""
    template = tokenizer.chat_template
    template = template.get("default") if isinstance(template, dict) else template
    return sha256_text(template) if isinstance(template, str) else None


def _stop_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids at which transformers' own `generate` stops."""
    ids = generation.eos_token_id if generation is not None else None
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


def load_stop_ids(target: str, tokenizer: Any, trust_remote_code: bool = False) -> tuple[int, ...]:
    """What `Target.stop_ids` will be, without loading the weights. Raises UserError for a broken generation_config.json."""
    _check_generation_config(target)
    try:
        generation = GenerationConfig.from_pretrained(target)
    except OSError:  # there is none: the model's config says it
        generation = GenerationConfig.from_model_config(load_config(target, trust_remote_code))
    return _stop_ids(generation, tokenizer)


def _check_generation_config(target: str) -> None:
    """transformers goes on without one that it cannot read: answers would then end elsewhere than the target's own do."""
    path = Path(target) / "generation_config.json"
    if path.is_file():
        read_json(path, "the target's generation_config.json")


def _check_finite(model: Any, target: str) -> None:
    """Raises UserError for weights that are NaN or infinite: every later comparison would be one of NaN with NaN."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(own_part(tensor)).all()):
            raise WeightsError(
                f"the weights of {target} are not finite",
                got=f"NaN or infinity in {name}",
                remedy="the file is damaged, or the weights overflow this dtype: copy it again, or try --dtype bf16 or fp32",
            )


def _check_weight_files(folder: Path) -> None:
    """Every shard named by the index is there and whole; a cut-off file is found before anything is loaded."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_weight_map(index).values()))
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
    """What an error says, in a line; a heading takes the line below it along, and a bare key the name of its error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return (f"{type(error).__name__}: {text}" if isinstance(error, KeyError | AttributeError | ArithmeticError) else text)[:300]


def _some(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
