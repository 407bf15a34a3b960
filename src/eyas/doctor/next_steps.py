"""What to hand the doctor next: which exhibit that was not given would decide most of what is still open."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.doctor.exhibits import Exhibits
from eyas.doctor.hypothesis import Finding, Verdict

_SERVED = {"server", "metrics", "log"}


def next_steps(exhibits: Exhibits, verdict: Verdict, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Most useful first; none for what is healthy or mended."""
    given = set(exhibits.given())
    if verdict == "healthy":
        return ()
    steps = []
    if _SERVED & given and not {"target", "draft"} <= given:
        lacking = " and ".join(f"--{name}" for name in ("target", "draft") if name not in given)
        steps.append(
            f"{lacking}: the draft is walked over real text then, which gives the acceptance by position that this server should show, "
            "and the usual wrong wirings are walked beside it"
        )
    elif "draft" in given and "target" not in given:
        steps.append("--target: states, norms, RoPE and the vocabulary map are tried on real text then, not only read")
    if {"metrics", "log"} & given and "server" not in given:
        steps.append("--server http://HOST:PORT: it is asked the same prompts alone, together and twice, and its text is compared")
    if "server" in given and "data" not in given:
        steps.append("--data with prompts like your own: acceptance depends on the text")
    if _SERVED & given and exhibits.engine is None:
        steps.append("--engine vllm==V or sglang==V: tables say what that version feeds the draft, and what its figures count")
    if any(finding.code in ("served-below", "lossy") for finding in findings) and "log" not in given:
        steps.append("--log: the server's own log shows whether acceptance falls with time or load")
    if verdict == "inconclusive" and "draft" in given and "dump" not in given:
        steps.append("--dump: the states and labels that the draft was trained on")
    return tuple(steps)
