"""Launch flags for a draft, as the engines' own command lines take them."""

from __future__ import annotations

import json

from packaging.version import Version

from eyas.engines.rows import CaptureRow, Judged

DRAFT_FOLDER = "DRAFT"  # stands for the exported folder in the flags of a plan
_NO_FUSION = "--enforce-disable-flashinfer-allreduce-fusion"
_NO_FUSION_SINCE = Version("0.5.10")


def launch_flags(judged: Judged, row: CaptureRow, num_draft_tokens: int, folder: str) -> tuple[str, ...]:
    """One list of shell words; `num_draft_tokens` is how many tokens are proposed a round, `folder` the exported draft's.

    SGLang counts the token that the target adds among its draft tokens, so that its number is one higher than vLLM's.
    """
    if judged.engine.name == "vllm":
        spec = {"method": "eagle3", "model": folder, "num_speculative_tokens": num_draft_tokens}
        return ("--speculative-config", json.dumps(spec))
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", folder]
    flags += ["--speculative-num-steps", str(num_draft_tokens), "--speculative-eagle-topk", "1"]
    flags += ["--speculative-num-draft-tokens", str(num_draft_tokens + 1)]
    if row.fused_allreduce and judged.version >= _NO_FUSION_SINCE:
        flags.append(_NO_FUSION)
    return tuple(flags)
