"""Runs inside the engines' environment: the real speculators library loads a checkpoint and gives back what it holds.

    python speculators_worker.py CHECKPOINT RESULT_FOLDER

RESULT_FOLDER/tensors.safetensors: the loaded model's own tensors; config.json: its config as the library sees it.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file
from speculators import SpeculatorModel

if __name__ == "__main__":
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    model = SpeculatorModel.from_pretrained(folder)
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}, out / "tensors.safetensors")
    (out / "config.json").write_text(json.dumps({"class": type(model).__name__, **model.config.to_dict()}, default=str))
