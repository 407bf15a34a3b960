"""From a GGUF file to an ordinary Hugging Face folder: the weights are dequantised, nothing else changes."""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.utils.logging import disable_progress_bar

from eyas.errors import UserError

MAX_MEMBER_BYTES = 4 << 30
disable_progress_bar()  # of transformers, as in `loading`: it fills logs


def unzip_member(archive: Path, suffix: str, folder: Path) -> Path:
    """Copy the one member of `archive` that ends in `suffix` into `folder`, under its bare name.

    Raises UserError if it isn't a zip file, holds none or several, or one that would unpack to too much.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [item for item in opened.infolist() if item.filename.endswith(suffix) and not item.is_dir()]
            if len(members) != 1 or members[0].file_size > MAX_MEMBER_BYTES:
                found = [(item.filename, item.file_size) for item in members]
                raise UserError(f"{archive} does not hold what was expected", got=found, allowed=f"one *{suffix} below 4 GiB")
            out = folder / Path(members[0].filename).name
            with opened.open(members[0]) as source, open(out, "wb") as sink:
                while block := source.read(1 << 20):
                    sink.write(block)
    except zipfile.BadZipFile as error:
        raise UserError(f"{archive} is not a whole zip file", got=str(error), remedy="remove it and pull again") from error
    return out


def convert_gguf(file: Path, folder: Path) -> None:
    """Write config, float32 safetensors, tokenizer and chat template of `file` into the existing folder `folder`.

    transformers refuses to save a model that came from GGUF until its marks of quantisation are taken off.
    """
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    with without_bar():
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def without_bar() -> Iterator[None]:
    """transformers draws the bar of GGUF's tensors by tqdm itself, which its own switch does not reach."""
    drawn = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = functools.partial(drawn, disable=True)
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn
