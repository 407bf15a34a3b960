"""Runs a worker in the engines' environment (`make setup-engines`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".venv-engines" / "bin" / "python"
HERE = Path(__file__).resolve().parent

_VLLM_SETTINGS = {
    "OMP_NUM_THREADS": str(os.cpu_count() or 2),
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 2) - 1}",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def run_engine(script: str, *arguments: Path) -> None:
    """Run a worker; its whole log is shown if it fails."""
    assert ENGINES.is_file(), "make setup-engines comes first"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _VLLM_SETTINGS
    done = subprocess.run(
        [str(ENGINES), str(HERE / script), *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{script} failed:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"


def run_vllm(folder: Path, **job: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    run_engine("vllm_worker.py", folder / "job.json", folder / "result.json")
    return dict(json.loads((folder / "result.json").read_text()))
