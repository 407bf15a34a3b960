"""Decoding before the newcomer's eyes: the text, with the tokens that the draft was right about in colour."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from eyas.engine.engine import Engine
from eyas.engine.request import Output, SamplingParams
from eyas.engine.text import TextStream
from eyas.evaluate.settings import Pair
from eyas.targets.target import Target

ACCEPTED = "bold green"


def decode_with_rounds(console: Console, pair: Pair, prompt_ids: list[int], max_new_tokens: int, num_draft_tokens: int) -> Output:
    """Answer one prompt and print the answer, accepted draft tokens coloured, with a line of figures under it."""
    with Engine(pair.target, pair.draft, pair.taps, num_draft_tokens=num_draft_tokens) as engine:
        [output] = engine.generate([prompt_ids], SamplingParams(max_new_tokens=max_new_tokens))
    console.print(coloured(pair.target, output))
    emitted = sum(round_.num_emitted for round_ in output.rounds)
    rate = f", {emitted / output.decode_seconds:.0f} tokens/s" if output.decode_seconds > 0 else ""
    length = f", {emitted / len(output.rounds):.2f} tokens a round" if output.rounds else ""
    console.print(f"{len(output.tokens)} tokens in {len(output.rounds)} rounds{length}{rate}", style="dim", highlight=False)
    return output


def coloured(target: Target, output: Output) -> Text:
    """The answer's text; what came from the draft has the style ACCEPTED."""
    text, stream = Text(), TextStream(target.tokenizer)
    text.append(stream.feed(output.tokens[:1]))
    for round_ in output.rounds:
        for place, token in enumerate(round_.tokens):
            text.append(stream.feed([token]), ACCEPTED if place < round_.num_accepted else None)
    text.append(stream.flush())
    return text
