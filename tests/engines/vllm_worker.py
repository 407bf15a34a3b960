"""Runs inside the engines' environment: one vLLM decodes prompts greedily and says how many drafts it accepted.

    python vllm_worker.py JOB.json RESULT.json

JOB: target, draft (a folder or null), dtype, num_draft_tokens, prompts (lists of ids), max_tokens, max_model_len.
RESULT: outputs (lists of ids), drafts, draft_tokens, accepted, accepted_per_position.
"""

import json
import sys
from pathlib import Path


def main(job: dict) -> dict:
    from vllm import LLM, SamplingParams

    speculative = None
    if job["draft"]:
        speculative = {"method": "eagle3", "model": job["draft"], "num_speculative_tokens": job["num_draft_tokens"]}
    llm = LLM(
        model=job["target"],
        dtype=job["dtype"],
        speculative_config=speculative,
        enforce_eager=True,
        max_model_len=job["max_model_len"],
        max_num_seqs=8,
        enable_prefix_caching=False,
        disable_log_stats=False,
    )
    params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
    counts = {metric.name: metric for metric in llm.get_metrics()}

    def total(name: str) -> int:
        metric = counts.get(f"vllm:spec_decode_{name}")
        return int(metric.value) if metric is not None else 0

    per_position = counts.get("vllm:spec_decode_num_accepted_tokens_per_pos")
    return {
        "outputs": [list(answer.outputs[0].token_ids) for answer in answers],
        "drafts": total("num_drafts"),
        "draft_tokens": total("num_draft_tokens"),
        "accepted": total("num_accepted_tokens"),
        "accepted_per_position": [int(value) for value in per_position.values] if per_position is not None else [],
    }


if __name__ == "__main__":
    job_file, result_file = map(Path, sys.argv[1:])
    result_file.write_text(json.dumps(main(json.loads(job_file.read_text()))))
