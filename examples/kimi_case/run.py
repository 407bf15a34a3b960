"""The Kimi-K2.5 case replayed: a draft trained on [embed, layer:2, layer:30] with the wrong teacher, and served [2, 30, 58].

    python examples/kimi_case/run.py --out DIR [--small] [--json]

Makes a target of Kimi's shape, captures it on 2 tensor-parallel times 2 context-parallel ranks, trains one draft as the faulty
pipeline did and one as it should have been, writes what a server would be given in three cases, measures each and lets the doctor
examine each. What DIR already holds is used again. --small takes few layers, experts and steps: minutes instead of most of an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.engines.catalog import ENGINES
from eyas.files import read_json, write_json, write_text
from eyas.progress import console
from eyas.targets.loading import load_config
from eyas.targets.made_text import made_chats

ENGINE = f"sglang=={ENGINES['sglang'].newest}"
THEN = "sglang==0.5.12"  # takes id k for the output of layer k of such a target, and cannot capture its embedding
IDS = "eagle_aux_hidden_state_layer_ids"
TP, CP = 2, 2
RANKS_SECONDS = 3600


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    chats: int
    heldout: int
    steps: int


SMALL, LARGE = Scale(chats=300, heldout=40, steps=200), Scale(chats=1000, heldout=60, steps=2500)


@dataclass(frozen=True)
class States:
    """The story's states; in a target of other depth the last two stand as far down as they do in Kimi's 61 layers."""

    first: str
    middle: str
    late: str

    @staticmethod
    def of(num_layers: int) -> States:
        return States("layer:2", f"layer:{num_layers // 2}", f"layer:{num_layers - 3}")

    @property
    def trained(self) -> str:
        return f"embed,{self.first},{self.middle}"

    @property
    def shifted(self) -> str:
        return f"{self.first},{self.middle},{self.late}"


def eyas(*arguments: object, ranks: int = 1, may_find: bool = False, log: Path | None = None) -> str:
    """Run a command of Eyas and give its standard output.

    may_find: exit status 1 is an answer, not a failure. log: where its progress goes if others run beside it, else to the terminal.
    """
    launch = [sys.executable, "-m"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # matrices so small that threads would mostly wait for one another
    if ranks > 1:
        launch += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    words = [str(word) for word in arguments]
    console.print("eyas " + " ".join(words) + (f"   ({ranks} ranks)" if ranks > 1 else ""), markup=False, highlight=False, soft_wrap=True)
    command = [*launch, "eyas.cli.main", *words]
    with log.open("a", encoding="utf-8") if log else contextlib.nullcontext() as stream:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, timeout=RANKS_SECONDS, check=False
        )
    if done.returncode not in ((0, 1) if may_find else (0,)):
        said = f"; what it said is in {log}" if log else ""
        raise SystemExit(f"eyas {words[0]} ended with status {done.returncode}{said}")
    return done.stdout


def once(folder: Path, make: Callable[[], object]) -> Path:
    """`folder`, made unless it is there already."""
    if not folder.exists():
        make()
    return folder


def write_chats(path: Path, count: int, *, held_out: bool) -> None:
    lines = [json.dumps({"messages": messages}) for messages in made_chats(count, seed=1, held_out=held_out)]
    write_text(path, "\n".join(lines) + "\n")


def set_ids(folder: Path, ids: list[int]) -> None:
    """Edit the layer ids wherever config.json holds them, and drop what else says how the draft was trained, as a hand did."""
    config = read_json(folder / "config.json", "the exported config")
    places = [part for part in (config, config.get("eagle_config")) if isinstance(part, dict) and IDS in part]
    if not places:
        raise SystemExit(f"{folder / 'config.json'} holds no {IDS}")
    for part in places:
        part.pop("layer_ids", None)  # a second name for the same
        part[IDS] = ids
    write_json(folder / "config.json", config)
    (folder / "eyas_wiring.json").unlink(missing_ok=True)


class Case:
    """The parts that all cases share, made one after the other."""

    def __init__(self, out: Path, small: bool) -> None:
        self.out, self.scale = out, SMALL if small else LARGE
        size = ["--small"] if small else []
        self.target = once(out / "target", lambda: eyas("model", "make", "kimi-tiny", "--out", out / "target", *size))
        self.states = States.of(int(load_config(str(self.target)).get_text_config(decoder=True).num_hidden_layers))
        self.heldout = once(out / "heldout.jsonl", lambda: write_chats(out / "heldout.jsonl", self.scale.heldout, held_out=True))
        self.prepared = once(out / "prepared", self._prepare)

    def _prepare(self) -> None:
        write_chats(self.out / "chats.jsonl", self.scale.chats, held_out=False)
        given = ("--target", self.target)
        asked, answered = self.out / "chats.jsonl", self.out / "answered.jsonl"
        eyas("data", "regenerate", *given, "--chats", asked, "--out", answered, "--max-new-tokens", 96)
        eyas("data", "prepare", *given, "--chats", answered, "--out", self.out / "prepared")

    def dump(self, name: str, teacher: str, *options: str) -> Path:
        """Three states and the teacher's, from ranks that split weights and positions."""
        out = self.out / name
        given = ("--target", self.target, "--data", self.prepared, "--taps", self.states.trained, "--teacher", teacher)
        layout = ("--tp", TP, "--cp", CP, "--dtype", "fp32")
        return once(out, lambda: eyas("capture", *given, *layout, *options, "--out", out, ranks=TP * CP))

    def draft(self, name: str, dump: Path) -> Path:
        out = self.out / name
        given = ("--target", self.target, "--dump", dump, "--taps", self.states.trained, "--dtype", "fp32")
        how = ("--steps", self.scale.steps, "--tokens-per-batch", 1024, "--learning-rate", 1e-3)
        return once(out, lambda: eyas("train", *given, *how, "--out", out))

    def served(self, name: str, draft: Path, ids: list[int] | None) -> Path:
        """What the server is given: the export as it is, or with ids set by hand."""
        out = self.out / "served" / name

        def make() -> None:
            part = out.with_name(f"{name}.part")
            shutil.rmtree(part, ignore_errors=True)
            eyas("export", draft, "--to", ENGINE, "--target", self.target, "--out", part)
            if ids is not None:
                set_ids(part, ids)
            part.rename(out)

        return once(out, make)

    def measure(self, name: str, draft: Path, dump: Path, served: Path, as_if: str | None = None) -> dict[str, Any]:
        """Accuracy and acceptance of a draft under the states it is fed, and what the doctor says about what the server got."""
        given = ("--target", self.target)
        feed, engine = ((), ENGINE) if as_if is None else (("--as-if", as_if), THEN)
        chats, log = ("--chats", self.heldout, "--max-new-tokens", 96, "--dtype", "fp32"), self.out / f"{name}.log"
        figures = json.loads(eyas("evaluate", *given, "--draft", draft, *chats, *feed, "--json", log=log))
        what = ("--draft", served, "--dump", dump, "--data", self.heldout, "--engine", engine)
        page = ("--html", self.out / f"doctor-{name}.html")
        told = json.loads(eyas("doctor", *given, *what, *page, "--json", may_find=True, log=log))
        write_json(self.out / f"doctor-{name}.json", told)
        manifest = read_json(dump / "manifest.json", "the dump's manifest")
        checked = manifest["teacher_check"]
        return {
            "name": name,
            "fed": as_if or self.states.trained,
            "engine": engine,
            "teacher": manifest["wiring"]["teacher"],
            "teacher_agreement": checked["agreeing"] / checked["checked"],
            "first_token_accuracy": figures["first_token_accuracy"],
            "acceptance_length": figures["acceptance_length_measured"],
            "acceptance_length_predicted": figures["acceptance_length_predicted"],
            "doctor": {
                "verdict": told["verdict"],
                "findings": told["findings"],
                "ruled_out": [item for item in told["hypotheses"] if item["verdict"] == "ruled out"],
            },
        }


def replay(out: Path, small: bool) -> dict[str, Any]:
    case = Case(out, small)
    states = case.states
    faulty_dump = case.dump("faulty-dump", states.late, "--allow-wrong-teacher")
    right_dump = case.dump("right-dump", "final")
    faulty, right = case.draft("faulty-draft", faulty_dump), case.draft("right-draft", right_dump)
    numbers = [int(name.split(":")[1]) for name in states.shifted.split(",")]
    todo = [
        ("served-2-30-58", faulty, faulty_dump, case.served("served-2-30-58", faulty, numbers), states.shifted),
        ("embed-2-30-wrong-teacher", faulty, faulty_dump, case.served("embed-2-30", faulty, None), None),
        ("right", right, right_dump, case.served("right", right, None), None),
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:  # each is one thread's work
        cases = list(pool.map(lambda one: case.measure(*one), todo))
    return {"target": str(case.target), "states": {"trained": states.trained, "shifted": states.shifted}, "cases": cases}


def _line(case: dict[str, Any]) -> str:
    found = ", ".join(f"{item['code']} ({item['subject']})" for item in case["doctor"]["findings"]) or "nothing"
    figures = f"first-token accuracy {100 * case['first_token_accuracy']:.1f} %, {case['acceptance_length']:.2f} tokens per round"
    return f"{case['name']}: {figures}; the doctor finds {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder that keeps everything")
    parser.add_argument("--small", action="store_true", help="few layers, experts and steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = replay(arguments.out, arguments.small)
    write_json(arguments.out / "result.json", result)
    for case in result["cases"]:
        console.print(_line(case), markup=False, highlight=False, soft_wrap=True)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
