"""Other projects' dumps: read by what they really mean, verified by numbers, and nothing in them runs."""

from __future__ import annotations

import json
import pickle
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.capture.forward import capture_batch
from eyas.data.store import Dump
from eyas.errors import UserError
from eyas.formats.dumps import import_dump, is_foreign_dump
from eyas.formats.dumps.index import IndexedText
from eyas.formats.dumps.probing import choose
from eyas.taps import Tap
from eyas.targets.loading import load_target
from eyas.targets.target import Target

TAPS = (Tap(1), Tap(2), Tap(3))


@dataclass(frozen=True)
class Texts:
    """What every fake dump is made of: per text ids, mask, states at all boundaries [T, N+1, H], and the final state."""

    target: Target
    ids: list[torch.Tensor]
    masks: list[torch.Tensor]
    boundaries: list[torch.Tensor]
    finals: list[torch.Tensor]
    top1: list[torch.Tensor]

    def stack(self, number: int, taps: tuple[Tap, ...]) -> torch.Tensor:
        return self.boundaries[number][:, [tap.boundary for tap in taps]].contiguous()


@pytest.fixture(scope="module")
def texts(tiny_targets) -> Texts:
    target = load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)
    target.norm.weight.data.copy_(torch.linspace(0.3, 2, target.hidden_size))  # before and after the norm must differ
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(4, target.vocab_size, (length,), generator=generator) for length in (90, 120, 70)]
    for row in ids:
        row[0] = target.tokenizer.bos_token_id
    all_taps = [Tap(boundary) for boundary in range(target.num_layers + 1)]
    captured = [capture_batch(target, [row.tolist()], all_taps)[0] for row in ids]
    return Texts(
        target,
        ids,
        [torch.arange(len(row)) >= 10 for row in ids],
        [item.states.unflatten(1, (-1, target.hidden_size)) for item in captured],
        [item.final for item in captured],
        [item.top1 for item in captured],
    )


def write_speculators(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    for number, ids in enumerate(texts.ids):
        stack = texts.stack(number, (*taps, Tap(texts.target.num_layers)))
        save_file({"token_ids": ids, "hidden_states": stack}, folder / f"hs_{number}.safetensors")


def write_speculators_pt(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    for number, ids in enumerate(texts.ids):
        layers = list(texts.stack(number, (*taps, Tap(texts.target.num_layers))).unbind(1))
        torch.save({"input_ids": ids, "loss_mask": texts.masks[number].long(), "hidden_states": layers}, folder / f"data_{number}.pt")


def write_specforge(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    for number, ids in enumerate(texts.ids):
        values = {
            "input_ids": ids,
            "loss_mask": texts.masks[number].long(),
            "hidden_state": texts.finals[number][None],
            "aux_hidden_state": texts.stack(number, taps).flatten(1)[None],
        }
        torch.save(values, folder / f"rows_{number}.ckpt")


def write_modelopt(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    for number, ids in enumerate(texts.ids):
        values = {
            "input_ids": ids,
            "hidden_states": texts.boundaries[number][:, -1].contiguous(),
            "aux_hidden_states": texts.stack(number, taps).flatten(1),
            "loss_mask": texts.masks[number].long(),
            "conversation_id": f"chat-{number}",
            "hidden_states_prenorm": True,
        }
        torch.save(values, folder / f"chat-{number}.pt")


def write_automodel(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    length, count = max(map(len, texts.ids)), len(texts.ids)
    fields = {name: torch.zeros(count, length, dtype=torch.long) for name in ("input_ids", "attention_mask", "loss_mask")}
    aux = torch.zeros(count, length, len(taps) * texts.target.hidden_size)
    for number, ids in enumerate(texts.ids):
        fields["attention_mask"][number, : len(ids)] = 1
        fields["input_ids"][number, : len(ids) - 1] = ids[1:]  # shifted left, as its target wrapper does
        fields["loss_mask"][number, : len(ids) - 1] = texts.masks[number][1:].long()
        aux[number, : len(ids)] = texts.stack(number, taps).flatten(1)
    position_mask, probs = torch.zeros(count, length, 1, dtype=torch.bool), torch.zeros(count, length, 8)
    save_file(
        {**fields, "aux_hidden_states": aux, "position_mask": position_mask, "target_probs": probs}, folder / "shard-000000.safetensors"
    )
    manifest = {"format_version": 2, "aux_layer_ids": [(tap.boundary or 0) - 1 for tap in taps], "num_samples": count, "shard_size": 8}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def write_vllm(texts: Texts, folder: Path, taps: tuple[Tap, ...] = TAPS) -> None:
    for number, ids in enumerate(texts.ids):
        stack = texts.stack(number, (*taps, Tap(texts.target.num_layers)))
        save_file({"token_ids": ids, "hidden_states": stack}, folder / f"cmpl-{number}.safetensors")


WRITERS: dict[str, Callable[..., None]] = {
    "speculators": write_speculators,
    "speculators-pt": write_speculators_pt,
    "specforge": write_specforge,
    "modelopt": write_modelopt,
    "automodel": write_automodel,
    "vllm": write_vllm,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_comes_in_whole(texts: Texts, tmp_path: Path, name: str):
    (tmp_path / "theirs").mkdir()
    WRITERS[name](texts, tmp_path / "theirs")
    assert is_foreign_dump(tmp_path / "theirs") == name
    report = import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "ours", taps=TAPS)
    dump = Dump.open(tmp_path / "ours")
    dump.verify()
    assert (dump.wiring.taps, dump.num_samples, report.source) == (TAPS, 3, name)
    assert dump.wiring.teacher_verified
    has_mask = name not in ("speculators", "vllm")
    assert any("loss mask" in said for said in report.assumed) is not has_mask
    for number, ids in enumerate(texts.ids):
        sample = dump.sample(number)
        assert torch.equal(sample.token_ids, ids)
        assert torch.equal(sample.states, texts.stack(number, TAPS).flatten(1))
        assert torch.equal(sample.loss_mask, texts.masks[number] if has_mask else torch.ones(len(ids), dtype=torch.bool))
        assert torch.allclose(sample.teacher, texts.finals[number], atol=1e-4)
        assert float((sample.top1 == texts.top1[number]).float().mean()) > 0.99


def test_the_commands_of_the_page_bring_every_project_in(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from eyas.cli.main import main

    page = (Path(__file__).parents[2] / "docs" / "dumps.md").read_text()
    commands = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^eyas import .*--out .*$", page, flags=re.MULTILINE)]
    assert {words[1] for words in commands} == set(WRITERS)
    monkeypatch.chdir(tmp_path)
    texts.target.model.save_pretrained("target")
    texts.target.tokenizer.save_pretrained("target")
    for words in commands:
        (tmp_path / words[1]).mkdir()
        WRITERS[words[1]](texts, tmp_path / words[1])
        with pytest.raises(SystemExit) as left:
            main([*words, "--dtype", "fp32"])  # as the states were made: three texts hold too few rows for bf16's ties
        assert not left.value.code, words
        assert Dump.open(words[-1]).wiring.taps == TAPS


def test_what_nobody_states_is_found_by_numbers_and_said(texts: Texts, tmp_path: Path):
    write_vllm(texts, tmp_path)
    report = import_dump(tmp_path, target=texts.target, out=tmp_path / "ours")
    assert report.wiring.taps == TAPS
    assert any("the numbers show layer:0,layer:1,layer:2" in said for said in report.assumed)


def test_ids_mean_what_their_project_says(texts: Texts, tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    write_automodel(texts, theirs)
    assert import_dump(theirs, target=texts.target, out=tmp_path / "a").wiring.taps == TAPS
    with pytest.raises(UserError, match="does not hold") as error:
        import_dump(theirs, target=texts.target, out=tmp_path / "b", convention="boundary")
    assert "--taps layer:0,layer:1,layer:2" in str(error.value)
    assert "off by one" not in str(error.value)
    assert not (tmp_path / "b").exists()
    with pytest.raises(UserError, match="--convention is not known"):
        import_dump(theirs, target=texts.target, out=tmp_path / "b", convention="sideways")


def test_labels_from_another_layer_are_refused(texts: Texts, tmp_path: Path):
    for number, ids in enumerate(texts.ids):
        layers = list(texts.stack(number, (*TAPS, Tap(3))).unbind(1))
        torch.save({"input_ids": ids, "loss_mask": texts.masks[number].long(), "hidden_states": layers}, tmp_path / f"data_{number}.pt")
    with pytest.raises(UserError, match="not the target's last one") as error:
        import_dump(tmp_path, target=texts.target, out=tmp_path / "ours", taps=TAPS)
    assert "layer:2" in str(error.value)


def test_one_strange_text_among_many_is_found(texts: Texts, tmp_path: Path):
    """A file of another run: the medians over all texts do not move."""
    (tmp_path / "theirs").mkdir()
    write_speculators(texts, tmp_path / "theirs")
    file = sorted((tmp_path / "theirs").iterdir())[-1]
    values = load_file(file)
    save_file(values | {"hidden_states": values["hidden_states"].flip(0).contiguous()}, file)
    with pytest.raises(UserError, match=f"text {file.stem} does not hold the target's states of its own tokens"):
        import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "ours", taps=TAPS)
    assert not (tmp_path / "ours").exists()


def test_states_that_belong_to_other_rows_are_named_so(texts: Texts, tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    write_speculators(texts, tmp_path / "theirs")
    for file in list((tmp_path / "theirs").iterdir()):
        values = load_file(file)
        save_file(values | {"hidden_states": values["hidden_states"].roll(1, 0).contiguous()}, file)
    with pytest.raises(UserError, match="not hold whole states of the target, row by row") as error:
        import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "ours", taps=TAPS)
    assert "rows shifted (by -1" in str(error.value)


@pytest.mark.parametrize("bits", [8, 16])
def test_labels_that_rounding_changed_are_the_targets_own(texts: Texts, tmp_path: Path, bits: int):
    """The target runs in fp32 here. Several tokens change; a state that is off by more than its rounding is refused still."""
    (tmp_path / "theirs").mkdir()
    write_speculators(texts, tmp_path / "theirs")
    for file in list((tmp_path / "theirs").iterdir()):
        states = load_file(file)["hidden_states"]
        scales = states.abs().amax((1, 2), keepdim=True) / 448
        rounded = {"hidden_states": (states / scales).to(torch.float8_e4m3fn), "hidden_states_scales": scales}
        save_file({"token_ids": load_file(file)["token_ids"]} | (rounded if bits == 8 else {"hidden_states": states.bfloat16()}), file)
    report = import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "ours", taps=TAPS)
    assert report.teacher_check is not None and report.teacher_check["wrong"] == 0
    assert report.teacher_check["checked"] == sum(map(len, texts.ids))
    assert 0.9 < report.teacher_check["share"] < 0.995
    for file in list((tmp_path / "theirs").iterdir()):
        values = load_file(file)
        noise = torch.randn(values["hidden_states"].shape, generator=torch.Generator().manual_seed(0))
        wide = values["hidden_states"].float() * values.get("hidden_states_scales", torch.ones(1))
        wide[:, -1] += 0.25 * wide[:, -1].norm(dim=-1, keepdim=True) * noise[:, -1] / noise[:, -1].norm(dim=-1, keepdim=True)
        save_file({"token_ids": values["token_ids"], "hidden_states": wide.bfloat16()}, file)
    with pytest.raises(UserError, match=r"the target's own tokens|does not hold|not the target's last one"):
        import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "noisy", taps=TAPS)


def test_a_single_state_is_what_the_draft_reads(texts: Texts, tmp_path: Path):
    write_vllm(texts, tmp_path, (Tap(texts.target.num_layers),))
    for file in list(tmp_path.iterdir()):
        values = load_file(file)
        save_file(values | {"hidden_states": values["hidden_states"][:, -1:].contiguous()}, file)
    report = import_dump(tmp_path, target=texts.target, out=tmp_path / "ours")
    assert report.wiring.taps == (Tap(texts.target.num_layers),)
    assert any("the target was run" in line for line in report.assumed)


def test_texts_of_all_parts_are_probed():
    lengths = [300] * 40 + [40] * 60
    texts = [IndexedText(Path("x"), number, str(number), length, 1, torch.zeros(0)) for number, length in enumerate(lengths)]
    chosen = choose(texts)
    assert len(chosen) == 8
    assert {100 * part // 8 <= number < 100 * (part + 1) // 8 for part, number in enumerate(chosen)} == {True}
    assert len(choose(texts[60:])) == 8
    assert sum(lengths[60 + number] for number in choose(texts[60:70])) >= 256  # as many as a verdict needs


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return Path.touch, (Path("/tmp/eyas-was-run"),)  # type: ignore[return-value]


def test_code_in_a_pickle_does_not_run(tmp_path: Path):
    torch.save({"input_ids": Evil()}, tmp_path / "chat.pt")
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Evil()))
    for file in ("chat.pt", "raw.ckpt"):
        with pytest.raises(UserError) as error:
            is_foreign_dump(tmp_path / file)
        assert file in str(error.value)
    assert not Path("/tmp/eyas-was-run").exists()


def damaged_cases() -> dict[str, tuple[Callable[[Path], None], str]]:
    def rewrite(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
        def apply(file: Path) -> None:
            values = dict(torch.load(file, weights_only=True))
            change(values)
            torch.save(values, file)

        return apply

    return {
        "cut short": (lambda file: file.write_bytes(file.read_bytes()[:500]), "chat-1.pt"),
        "missing key": (rewrite(lambda values: values.pop("input_ids")), "lacks input_ids"),
        "fewer rows": (rewrite(lambda values: values.update(aux_hidden_states=values["aux_hidden_states"][:5])), "aux_hidden_states"),
        "ids as floats": (rewrite(lambda values: values.update(input_ids=values["input_ids"].float())), "input_ids"),
        "odd width": (rewrite(lambda values: values.update(aux_hidden_states=values["aux_hidden_states"][:, :100])), "aux_hidden_states"),
        "short mask": (rewrite(lambda values: values.update(loss_mask=values["loss_mask"][:5])), "loss_mask"),
        "not a number": (rewrite(lambda values: values["aux_hidden_states"].fill_(float("nan"))), "not finite"),
    }


@pytest.mark.parametrize("case", damaged_cases())
def test_damage_is_named_by_file_and_key(texts: Texts, tmp_path: Path, case: str):
    (tmp_path / "theirs").mkdir()
    write_modelopt(texts, tmp_path / "theirs")
    damage, message = damaged_cases()[case]
    damage(tmp_path / "theirs" / "chat-1.pt")
    with pytest.raises(UserError) as error:
        import_dump(tmp_path / "theirs", target=texts.target, out=tmp_path / "ours", taps=TAPS)
    assert message in str(error.value)


def test_a_huge_header_and_a_way_out_are_refused(texts: Texts, tmp_path: Path):
    (tmp_path / "hs_0.safetensors").write_bytes((200 << 30).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match=r"hs_0\.safetensors"):
        import_dump(tmp_path, target=texts.target, out=tmp_path / "ours", taps=TAPS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "hs_1.safetensors").symlink_to(tmp_path / "hs_0.safetensors")
    with pytest.raises(UserError, match="leads out of"):
        is_foreign_dump(tmp_path / "in")


def test_what_is_no_foreign_dump(texts: Texts, tiny_dump: Path, tiny_targets, tmp_path: Path):
    assert is_foreign_dump(tiny_dump) is None
    assert is_foreign_dump(tiny_targets("llama")) is None
    assert is_foreign_dump(tmp_path) is None
    with pytest.raises(UserError, match="own dump already"):
        import_dump(tiny_dump, target=texts.target, out=tmp_path / "ours")
    with pytest.raises(UserError, match="no dump of a known project"):
        import_dump(tmp_path, target=texts.target, out=tmp_path / "ours")


def test_natural_order_of_files(tmp_path: Path):
    from eyas.formats.dumps.files import files_below

    for number in (10, 9, 1):
        (tmp_path / f"hs_{number}.safetensors").write_bytes(b"")
    assert [file.stem for file in files_below(tmp_path, ".safetensors")] == ["hs_1", "hs_9", "hs_10"]
