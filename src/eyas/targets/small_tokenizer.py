"""Tokenizers of at most 512 tokens for targets that are made here, with a chat template of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TURN = "<|im_end|>"
_SPECIAL = ("<|pad|>", "<|begin|>", "<|im_start|>", END_OF_TURN)
_VOCAB_SIZE = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def small_tokenizer(learnt: str, chat_template: str = CHAT_TEMPLATE) -> Any:
    """What transformers makes of a tokenizer of `learn_tokenizer`, with a chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(learnt),
        chat_template=chat_template,
        eos_token=END_OF_TURN,
        pad_token="<|pad|>",
        bos_token="<|begin|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )


def learn_tokenizer(texts: Iterable[str]) -> str:
    """Byte-level BPE of at most 512 tokens, the special ones first, as the JSON of the tokenizers library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())
