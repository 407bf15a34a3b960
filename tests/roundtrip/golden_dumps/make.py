"""Writes the golden dumps beside it: two short texts a project, with that project's own keys, by hand and without Eyas's code.

    python tests/roundtrip/golden_dumps/make.py

Keys, dtypes and shapes follow speculators 0.9.0 (train/data.py) with hs-connectors 0.9.0 (fp8_utils.py), speculators 0.3.0
(data_generation), specforge 0.2.0 (runtime/data_plane/offline_reader.py), nvidia-modelopt 0.47.0 (speculative/eagle/utils.py),
nemo-automodel 0.7.0 (datasets/llm/eagle3_cache.py, speculative/eagle/target.py) and vLLM 0.32 (example_hidden_states_connector.py).
Every number in the states says where it stands: text * 100 + position * 10 + slot + column / 8.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parent
SLOTS, HIDDEN, LAST = 3, 4, 9  # the labels' state is slot 9
IDS = ([5, 7, 11, 13, 17], [5, 19, 23])
MASKS = ([0, 0, 1, 1, 1], [0, 1, 1])


def states(text: int, slots: range | list[int]) -> torch.Tensor:
    """[positions, slots, columns]."""
    position = torch.arange(len(IDS[text]))[:, None, None]
    return text * 100.0 + position * 10.0 + torch.tensor(list(slots))[None, :, None] + torch.arange(HIDDEN)[None, None] / 8


def folder(name: str) -> Path:
    (ROOT / name).mkdir(exist_ok=True)
    return ROOT / name


def speculators() -> None:
    for text, ids in enumerate(IDS):
        stack = states(text, [*range(SLOTS), LAST]).bfloat16()
        save_file({"token_ids": torch.tensor(ids), "hidden_states": stack}, folder("speculators") / f"hs_{text}.safetensors")
        scale = stack.float().abs().amax((1, 2), keepdim=True) / 448
        small = {"token_ids": torch.tensor(ids), "hidden_states": (stack.float() / scale).to(torch.float8_e4m3fn)}
        save_file({**small, "hidden_states_scales": scale}, folder("speculators-fp8") / f"hs_{text}.safetensors")


def vllm() -> None:
    for text, ids in enumerate(IDS):
        stack = states(text, [*range(SLOTS), LAST]).bfloat16()
        save_file({"token_ids": torch.tensor(ids), "hidden_states": stack}, folder("vllm") / f"cmpl-{text}.safetensors")


def pickled() -> None:
    for text, ids in enumerate(IDS):
        inputs = {"input_ids": torch.tensor(ids), "loss_mask": torch.tensor(MASKS[text])}
        taps, last = states(text, range(SLOTS)).bfloat16(), states(text, [LAST]).bfloat16()[:, 0]
        layers = [*taps.unbind(1), last]
        torch.save({**inputs, "hidden_states": [layer.clone() for layer in layers]}, folder("speculators-pt") / f"data_{text}.pt")
        flat = taps.flatten(1)
        torch.save({**inputs, "hidden_state": last[None], "aux_hidden_state": flat[None]}, folder("specforge") / f"rows_{text}.ckpt")
        modelopt = {"hidden_states": last, "aux_hidden_states": flat, "hidden_states_prenorm": True, "conversation_id": f"chat-{text}"}
        torch.save({**inputs, **modelopt}, folder("modelopt") / f"chat-{text}.pt")


def automodel() -> None:
    """Its ids and masks are shifted by one, its states are not."""
    count, length = len(IDS), max(map(len, IDS))
    rows = {name: torch.zeros(count, length, dtype=torch.long) for name in ("input_ids", "attention_mask", "loss_mask")}
    aux = torch.zeros(count, length, SLOTS * HIDDEN, dtype=torch.bfloat16)
    for text, ids in enumerate(IDS):
        rows["input_ids"][text, : len(ids) - 1] = torch.tensor(ids[1:])
        rows["loss_mask"][text, : len(ids) - 1] = torch.tensor(MASKS[text][1:])
        rows["attention_mask"][text, : len(ids)] = 1
        aux[text, : len(ids)] = states(text, range(SLOTS)).bfloat16().flatten(1)
    more = {"position_mask": torch.ones(count, length, 1, dtype=torch.bool), "target_probs": torch.full((count, length, 6), 1 / 6)}
    save_file({**rows, "aux_hidden_states": aux, **more}, folder("automodel") / "shard-000000.safetensors")
    manifest = {"format_version": 2, "num_samples": count, "shard_size": 8, "aux_layer_ids": [0, 1, 2], "target_probs_topk": None}
    (folder("automodel") / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    speculators()
    vllm()
    pickled()
    automodel()
