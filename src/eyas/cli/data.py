"""`eyas data`: chats in, prepared tokens or the target's own answers out."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli.options import DeviceOption, DtypeOption, JsonOption, TargetOption, TrustRemoteCode, emit
from eyas.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eyas.data.chats import Chat
    from eyas.data.render import Tokens

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Prepare chats, and let the target answer them.")

MAX_OVERLAP = 0.05

ChatsOption = Annotated[list[Path], typer.Option("--chats", help="JSON Lines of chats; may be given several times.")]
OutFile = Annotated[Path, typer.Option("--out", help="The JSON Lines file to write.")]
HeldoutOption = Annotated[Path | None, typer.Option("--heldout", help="Chats of the held-out set, to measure the overlap with.")]
PartOption = Annotated[str, typer.Option("--part", help="I/N: do the I-th of N shares, so that N processes can work side by side.")]
SlotsOption = Annotated[int, typer.Option("--slots", min=1, max=4096, help="How many texts are written at the same time.")]
MaxNewOption = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Where a text is cut off.")]
TopPOption = Annotated[float, typer.Option("--top-p", min=0.01, max=1.0, help="Sample from the smallest set with this probability.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the sampling.")]


@app.command()
def prepare(
    target: TargetOption,
    chats: ChatsOption,
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of chats.")] = None,
    max_length: Annotated[int, typer.Option("--max-length", help="Chats are cut off behind this many tokens.")] = 1024,
    validation: Annotated[float, typer.Option("--validation", help="Share of the chats kept out of training.")] = 0.05,
    show: Annotated[int, typer.Option("--show", min=0, help="Print so many chats, what the draft learns from in colour.")] = 0,
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Render chats to token ids and a loss mask by the target's own chat template."""
    from eyas.data.prepare import PrepareSettings
    from eyas.data.prepare import prepare as run
    from eyas.progress import counted

    settings = PrepareSettings(max_length, validation)
    info = run(
        target, [*chats, *(more or [])], out, settings, trust_remote_code=trust_remote_code, show=_shower(show, as_json) if show else None
    )
    if as_json:
        emit(info, True)
        return
    for name in ("train", "validation"):
        part = info[name]
        print(f"{name}: {counted(part['chats'], 'chat')}, {part['tokens']:,} tokens, {part['supervised_ratio']:.1%} of them supervised")
        print(f"  {part['chats_at_max_length']} reach {max_length} tokens; {part['chats_ending_without_stop']} end without a stop token")
        print(f"  {part['answers_cut_off']} cut off at the limit: their end is not trained")
    print(f"skipped: {len(info['skipped'])}")
    for reason, count in info["skipped_by_reason"].items():
        names = [item["id"] for item in info["skipped"] if item["reason"] == reason]
        print(f"  {count} x {reason}: {', '.join(names[:5])}{' ...' if count > 5 else ''}")
    print(f"written to {out}")


@app.command()
def regenerate(
    target: TargetOption,
    chats: ChatsOption,
    out: OutFile,
    max_new_tokens: MaxNewOption = 256,
    max_prompt_tokens: Annotated[int, typer.Option("--max-prompt-tokens", min=1, help="Chats with longer prompts are skipped.")] = 1024,
    slots: SlotsOption = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = 0,
    stop_at_loop: Annotated[bool, typer.Option("--stop-at-loop", help="End an answer that repeats itself.")] = False,
    heldout: HeldoutOption = None,
    part: PartOption = "1/1",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Replace the answers of chats by the target's own. Goes on where a killed run stopped."""
    from eyas.data.chats import read_chats, write_chats
    from eyas.data.journal import journal_of
    from eyas.data.regenerate import regenerate as run
    from eyas.targets.generate import BatchSettings

    index, parts = _parse_part(part)
    questions = [chat for path in chats for chat in read_chats(path)][index::parts]
    held = _read_texts(heldout)
    _refuse_existing(out)
    settings = BatchSettings(max_new_tokens, slots, temperature, top_p, stop_at_loop, seed)
    answered, report = run(_load(target, device, dtype, trust_remote_code), questions, out, settings, max_prompt_tokens)
    if not answered:
        raise UserError("no chat could be answered", got=report.skipped, remedy="see the reasons; a chat needs a user turn")
    write_chats(out, answered)
    journal_of(out).unlink(missing_ok=True)
    result = {"chats": len(answered), **dataclasses.asdict(report), "loop_share": report.looping / max(1, report.answers)}
    emit(result | {"max_new_tokens": max_new_tokens} | _overlap_report(held, answered), as_json)


@app.command()
def sample(
    target: TargetOption,
    count: Annotated[int, typer.Option("--count", min=1, help="How many prompts to keep (of this part, with --part).")],
    out: OutFile,
    heldout: HeldoutOption = None,
    max_new_tokens: MaxNewOption = 96,
    slots: SlotsOption = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.01, help="Higher is more varied.")] = 1.0,
    top_p: TopPOption = 0.95,
    seed: SeedOption = 0,
    part: PartOption = "1/1",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "bf16",
    trust_remote_code: TrustRemoteCode = False,
    as_json: JsonOption = False,
) -> None:
    """Let the target write prompts: a user turn is opened with a few words, and the target goes on."""
    from eyas.data.chats import write_chats
    from eyas.data.journal import journal_of
    from eyas.data.sample import sample_prompts
    from eyas.targets.generate import BatchSettings

    held = _read_texts(heldout)
    _refuse_existing(out)
    settings, share = BatchSettings(max_new_tokens, slots, temperature, top_p, seed=seed), _parse_part(part)
    prompts, report = sample_prompts(_load(target, device, dtype, trust_remote_code), count, out, settings, held, share)
    write_chats(out, prompts)
    journal_of(out).unlink(missing_ok=True)
    emit(dataclasses.asdict(report) | {"max_new_tokens": max_new_tokens} | _overlap_report(held, prompts), as_json)


@app.command("overlap")
def overlap_command(
    heldout: Annotated[Path, typer.Option("--heldout", help="Chats of the held-out set.")],
    chats: ChatsOption,
    as_json: JsonOption = False,
) -> None:
    """How many of the held-out set's word 4-grams occur in training chats. Exit status 1 from 5 % on."""
    from eyas.data.chats import read_chats

    report = _overlap_report(_read_texts(heldout), [chat for path in chats for chat in read_chats(path)])
    emit(report, as_json)
    if not report["overlap_ok"]:
        raise typer.Exit(1)


@app.command()
def prompts(
    out: Annotated[Path, typer.Option("--out", help="The folder to write train.jsonl, answered.jsonl and heldout.jsonl to.")],
    as_json: JsonOption = False,
) -> None:
    """Write the prompts that come with Eyas: some to train on, more with the answers of smollm2-135m, and the fixed held-out set."""
    from importlib import resources

    from eyas.files import atomic_path

    counts = {}
    names = ("train", "answered", "heldout")
    for name in names:
        _refuse_existing(out / f"{name}.jsonl")
    with contextlib.ExitStack() as together:  # all files or none
        for name in names:
            text = resources.files("eyas.data").joinpath(f"prompts/{name}.jsonl").read_text(encoding="utf-8")
            together.enter_context(atomic_path(out / f"{name}.jsonl")).write_text(text, encoding="utf-8")
            counts[name] = len(text.splitlines())
    emit(counts, as_json)


def _load(target: str, device: str, dtype: str, trust_remote_code: bool) -> Any:
    from eyas.targets.devices import resolve_device, resolve_dtype
    from eyas.targets.loading import load_target

    return load_target(target, device=resolve_device(device), dtype=resolve_dtype(dtype), trust_remote_code=trust_remote_code)


def _parse_part(text: str) -> tuple[int, int]:
    """`2/3` is (1, 3)."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError("--part must be I/N", got=text, allowed="1/N to N/N")
    return int(match[1]) - 1, int(match[2])


def _refuse_existing(path: Path) -> None:
    """Raises UserError for a file that is there already, or that could not be written."""
    from eyas.files import check_folder_writable

    if path.exists():
        raise UserError(f"{path} exists", remedy="give another --out, or remove it first")
    check_folder_writable(path.parent)


def _texts(chats: list[Chat]) -> list[str]:
    return ["\n".join(str(message.get("content") or "") for message in chat.messages if message["role"] != "system") for chat in chats]


def _read_texts(path: Path | None) -> list[str]:
    from eyas.data.chats import read_chats

    return [] if path is None else _texts(list(read_chats(path)))


def _overlap_report(heldout: list[str], chats: list[Chat]) -> dict[str, Any]:
    from eyas.data.overlap import overlap

    if not heldout:
        return {}
    share = overlap(heldout, _texts(chats))
    return {"heldout_overlap": share, "overlap_allowed": MAX_OVERLAP, "overlap_ok": share < MAX_OVERLAP}


def _shower(count: int, as_json: bool) -> Callable[[Any, Tokens], None]:
    """Prints the first `count` chats it is given: green is what the draft learns from."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stderr if as_json else sys.stdout)
    shown = 0

    def show(tokenizer: Any, sample: Tokens) -> None:
        nonlocal shown
        if shown == count:
            return
        shown += 1
        text = Text()
        start = 0
        for at in range(1, len(sample.token_ids) + 1):
            if at == len(sample.token_ids) or sample.loss_mask[at] != sample.loss_mask[start]:
                text.append(tokenizer.decode(list(sample.token_ids[start:at])), style="bold green" if sample.loss_mask[start] else "dim")
                start = at
        console.print(
            f"--- {sample.id}: {sum(sample.loss_mask)} of {len(sample.token_ids)} tokens supervised", markup=False, highlight=False
        )
        console.print(text)

    return show
