"""eyas generate: text from a target, speculatively if there is a draft."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    RankTimeoutOption,
    TargetOption,
    TensorParallelOption,
    TrustRemoteCode,
    emit,
)
from eyas.errors import UserError

if TYPE_CHECKING:
    from eyas.engine.pair import ServingPair
    from eyas.engine.request import Output, Round, SamplingParams
    from eyas.targets.target import Target


def command(
    target: TargetOption,
    draft: Annotated[Path | None, typer.Option(help="A draft for this target; without one, plain decoding.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What to answer.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file instead.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message in front of the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it stands, without the chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, stop token included.")] = 256,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", help="K: proposals a round.")] = 3,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample from the smallest set with this probability; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Sample from the K most likely tokens; 0 is off.")] = 0,
    seed: Annotated[int, typer.Option(help="Start of the random numbers; without meaning at temperature 0.")] = 0,
    show_rounds: Annotated[
        bool, typer.Option("--show-rounds", help="Colour accepted draft tokens; brackets off a terminal or if NO_COLOR is set.")
    ] = False,
    tp: TensorParallelOption = 1,
    rank_timeout: RankTimeoutOption = 1800.0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Stream an answer to stdout and a line of figures to stderr; with a draft the text is the same, only sooner."""
    from eyas.engine.pair import load_pair
    from eyas.engine.request import SamplingParams, check_num_draft_tokens
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.layout import local_device, start_layout

    params = SamplingParams(max_new_tokens, temperature, top_p, top_k, seed)
    text = _prompt(prompt, prompt_file)
    _check_text("--system", system or "")
    if raw and system is not None:
        raise UserError("--raw has no system message", got="--system", remedy="put it into the prompt")
    if draft is not None:
        check_num_draft_tokens(num_draft_tokens)
    where, number_type = resolve_device(local_device(device)), resolve_dtype(dtype)
    with start_layout(tp, 1, "zig-zag", where, rank_timeout) as layout:
        pair = load_pair(target, draft, where, number_type, trust_remote_code, layout)
        if layout.writes:
            for warning in pair.warnings:
                print(f"warning: {warning}", file=sys.stderr)
        printer = _Printer(pair.target, show_rounds and draft is not None, silent=as_json or not layout.writes)
        output = _answer(pair, _encode(pair.target, text, system, raw), params, num_draft_tokens, printer)
        if not layout.writes:
            return
    figures = _figures(output)
    print(_summary(figures), file=sys.stderr)
    if as_json:
        emit({"text": printer.text, **figures, "tokens": list(output.tokens), "rounds": _rounds(output)}, as_json=True)


def _answer(pair: ServingPair, prompt_ids: list[int], params: SamplingParams, num_draft_tokens: int, printer: _Printer) -> Output:
    """Decode, showing every round as it comes."""
    from eyas.engine.engine import Engine

    with Engine(pair.target, pair.draft, pair.taps, num_draft_tokens=num_draft_tokens) as engine:
        request = engine.add(prompt_ids, params)
        for round_ in engine.run(request):
            printer.show(round_)
        printer.end()
        return request.output()


def _marks() -> tuple[str, str]:
    """What stands around an accepted token: colour would be noise in a file or a pipe."""
    return ("\x1b[32m", "\x1b[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("[", "]")


class _Printer:
    """Writes text as rounds bring it."""

    def __init__(self, target: Target, show_rounds: bool, silent: bool) -> None:
        from eyas.engine.text import TextStream

        self.text = ""
        self._stream = TextStream(target.tokenizer)
        self._silent = silent
        self._marks = _marks() if show_rounds else ("", "")

    def show(self, round_: Round) -> None:
        for place, token in enumerate(round_.tokens):
            self._write(self._stream.feed([token]), accepted=place < round_.num_accepted)

    def end(self) -> None:
        self._write(self._stream.flush(), accepted=False)
        if not self._silent:
            print(flush=True)

    def _write(self, piece: str, accepted: bool) -> None:
        self.text += piece
        if piece and not self._silent:
            before, after = self._marks if accepted else ("", "")
            print(before + piece + after, end="", flush=True)


def _prompt(prompt: str | None, prompt_file: Path | None) -> str:
    if (prompt is None) == (prompt_file is None):
        raise UserError("give the prompt once", allowed="--prompt TEXT or --prompt-file FILE")
    if prompt is not None:
        text, where = prompt, "--prompt"
    else:
        assert prompt_file is not None
        where = str(prompt_file)
        try:
            text = prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the prompt: {prompt_file}", got=str(error), allowed="a text file in UTF-8") from error
    if not text.strip():
        raise UserError(f"the prompt is empty: {where}", allowed="some text")
    _check_text(where, text)
    return text


def _check_text(where: str, text: str) -> None:
    """Bytes that are not UTF-8 reach Python's arguments as halves of surrogate pairs, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} is not text in UTF-8", got=str(error), remedy="give it by --prompt-file, in UTF-8") from error


def _encode(target: Target, text: str, system: str | None, raw: bool) -> list[int]:
    if raw:
        return [int(token) for token in target.tokenizer.encode(text)]
    if not target.tokenizer.chat_template:
        remedy = "use an instruct model, or --raw to continue the text as it stands"
        raise UserError("the target has no chat template", got=target.name, remedy=remedy)
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    try:
        rendered = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template raises whatever it likes
        remedy = "leave --system out, or use --raw"
        raise UserError("the target's chat template refused the prompt", got=str(error), remedy=remedy) from error
    return [int(token) for token in target.tokenizer.encode(rendered, add_special_tokens=False)]


def _figures(output: Output) -> dict[str, Any]:
    """Tokens a second are those of the rounds; the prefill, which gives the first token, is told apart."""
    num_rounds, num_emitted = len(output.rounds), sum(round_.num_emitted for round_ in output.rounds)
    return {
        "finish_reason": output.finish_reason,
        "num_prompt_tokens": len(output.prompt_ids),
        "num_tokens": len(output.tokens),
        "num_rounds": num_rounds,
        "num_proposed_tokens": sum(round_.num_proposed for round_ in output.rounds),
        "num_accepted_tokens": sum(round_.num_accepted for round_ in output.rounds),
        "acceptance_length": num_emitted / num_rounds if num_rounds else None,
        "tokens_per_second": num_emitted / output.decode_seconds if num_rounds else None,
        "prefill_seconds": output.prefill_seconds,
        "decode_seconds": output.decode_seconds,
    }


def _summary(figures: dict[str, Any]) -> str:
    speed = "" if figures["tokens_per_second"] is None else f", {figures['tokens_per_second']:.1f} tokens/s"
    length = "" if figures["acceptance_length"] is None else f", acceptance length {figures['acceptance_length']:.2f}"
    return f"{figures['num_tokens']} tokens{speed}{length}, {figures['num_rounds']} rounds, ended by {figures['finish_reason']}"


def _rounds(output: Output) -> list[dict[str, Any]]:
    return [
        {
            "num_proposed": round_.num_proposed,
            "num_accepted": round_.num_accepted,
            "num_emitted": round_.num_emitted,
            "tokens": list(round_.tokens),
        }
        for round_ in output.rounds
    ]
