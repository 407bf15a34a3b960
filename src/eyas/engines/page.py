"""Writes the page on engines from the tables themselves: python -m eyas.engines.page docs/engines.md

What stands between the two marks is measured, not generated, and is kept as it is. A test compares the file with what
this module would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from eyas.engines.catalog import ENGINES
from eyas.engines.draft_facts import FEATURES, features_of
from eyas.engines.rows import CaptureRow, Engine, HeadRow
from eyas.files import write_text

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

_HEAD = """# Engines

The states that an engine feeds a draft depend on its name, its version, the target's architecture and the keys of the draft's
config. One key, `eagle_aux_hidden_state_layer_ids`, has had three meanings. The tables below say what was found in which version; the
page is written by `make docs` from the same rows that the commands use.

```sh
eyas wiring translate DRAFT --to vllm==0.33.0 --target TARGET   # which keys and flags feed it what it was trained on, or why none do
eyas export DRAFT --to sglang==0.5.14 --target TARGET --out OUT # the same, written as a checkpoint
```

Of the target only `config.json` is read. A plan is worked out backwards from the wiring and then forwards again, the way the engine
itself finds, reads and captures, so that it promises nothing that the tables do not feed. An engine newer than all that were read is
judged as the newest one, and that is said; an older one than the oldest is refused.

## What all of them have in common

- Captured states reach the draft in ascending order and each once, whatever the order of the ids. If a draft was trained on another
  order, the export moves the columns of `fc`, the parts of `input_norm` and the norms of `fc_norm` together. It proves that by one
  step of both drafts in fp32, with norm weights drawn at random, because weights near 1 would hide a norm that was left behind.
- Without ids they fall back on boundaries 2, N // 2 and N - 3, without an error.
- None captures the state after the final norm.
- Ids are written under every key that any runner reads, and RoPE under the keys of old and new transformers.
- A head that is tied to the draft's own embedding is written out: where `lm_head` is missing, vLLM takes the target's. A map of a full
  vocabulary is left out, which vLLM does not load since 0.30. MLA drafts are written as `deepseek_v2`: vLLM takes one of type
  `deepseek_v3` for an MTP layer.
"""

_MEASURED = "## Measured on a real vLLM\n"

_ELSEWHERE = """## Engines that Eyas does not plan for

| engine | ids from | default | an id means | order | checked |
| --- | --- | --- | --- | --- | --- |
| lmdeploy 0.18 | nowhere: the draft's ids are not used | 2, N // 2, N - 3 | boundary | ascending | read in its wheel |
| TensorRT-LLM | `eagle3_layers_to_capture` | 1, N // 2 - 1, N - 4 | output of layer | sorted, -1 last | not verified |
| llama.cpp (GGUF) | `extract_layers`, exactly three | refuses | boundary | as given | not verified |
"""


def page(measured: str) -> str:
    """The whole page; `measured` is what stands between the marks, the marks included."""
    sections = [_HEAD]
    for engine in ENGINES.values():
        sections += ["\n".join(_engine(engine)), ""]
    return "\n".join([*sections, _MEASURED, measured, "", _ELSEWHERE])


def measured_part(text: str) -> str:
    """What stands between the marks of an existing page, or the placeholder."""
    if BEGIN in text and END in text:
        return BEGIN + text.split(BEGIN)[1].split(END)[0] + END
    return f"{BEGIN}\nNot measured yet.\n{END}"


def _engine(engine: Engine) -> Iterator[str]:
    yield f"## {engine.name} {engine.oldest} to {engine.newest}"
    yield "\nWhere the ids come from: the first key that holds a list.\n"
    rows = ((row.versions, row.runner or "-", ", then ".join(f"`{key}`" for key in row.ids_keys), row.evidence) for row in engine.readers)
    yield from _table(("versions", "runner", "keys", "read in"), rows)
    yield "\nWhich states of a target can be had, and what an id means. N is the number of layers.\n"
    header = ("target", "versions", "an id means", "embedding", "boundary N", "read in")
    yield from _table(header, (_capture(row) for row in engine.captures))
    yield "\nWhich drafts it runs. A draft that uses one of the things in the last column is refused.\n"
    yield from _table(("head", "versions", "class", "read in", "not honoured"), (_head(row) for row in engine.heads))
    honoured = {name for row in engine.heads for name in row.honours}
    nowhere = "; ".join(words for name, words in FEATURES.items() if name not in honoured)
    yield f"\nNone of them honours, or is known to: {nowhere}."
    hazards = [row for row in engine.captures if row.fused_allreduce]
    if hazards:
        names = "; ".join(f"{_capture(row)[0]} {row.versions}" for row in hazards)
        yield "\nWith tensor parallelism a state may be captured before a fused all-reduce (read, not run); it then holds only"
        yield f"one rank's share of the last branch; plans switch the fusion off from 0.5.10 on. Rows concerned: {names}."


def _head(row: HeadRow) -> tuple[str, ...]:
    somewhere = {name for engine in ENGINES.values() for other in engine.heads for name in other.honours}
    missing = [FEATURES[name] for name in features_of(row.kind) if name in somewhere - row.honours]
    return row.kind, row.versions, f"`{row.architecture}`", f"{row.file}: {row.evidence}", "; ".join(missing) or "-"


def _capture(row: CaptureRow) -> tuple[str, ...]:
    return (
        ", ".join(dict.fromkeys(name.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration") for name in row.architectures)),
        row.versions,
        row.meaning.value,
        "no" if row.no_embedding else "yes",
        "no" if row.no_last else "yes",
        f"{row.file}: {row.evidence}",
    )


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (header, ("---",) * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    write_text(path, page(measured_part(path.read_text(encoding="utf-8") if path.exists() else "")))
