"""What a target's files alone say about the wiring: enough to refuse a wrong pairing before a tensor is read."""

from __future__ import annotations

from pathlib import Path

from eyas.targets.loading import chat_template_hash, load_config, load_tokenizer, tokenizer_hash
from eyas.targets.target import Target
from eyas.wiring import Wiring


def target_wiring(target: str, trust_remote_code: bool = False) -> Wiring:
    """The target's side of every comparison, from config.json and the tokenizer. Raises UserError if either is broken."""
    text = load_config(target, trust_remote_code).get_text_config(decoder=True)
    tokenizer = load_tokenizer(target, trust_remote_code)
    return Wiring(
        num_target_layers=int(text.num_hidden_layers),
        target_hidden_size=int(text.hidden_size),
        target_vocab_size=int(text.vocab_size),
        tokenizer_hash=tokenizer_hash(tokenizer),
        target_name=Path(target).resolve().name if Path(target).is_dir() else target,
        chat_template_hash=chat_template_hash(tokenizer),
    )


def loaded_wiring(target: Target) -> Wiring:
    """The same of a target that is loaded already."""
    return Wiring(
        num_target_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        target_vocab_size=target.vocab_size,
        tokenizer_hash=target.tokenizer_hash,
        target_name=target.name,
        chat_template_hash=target.chat_template_hash,
    )
