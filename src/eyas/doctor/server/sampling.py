"""Do a server's sampled tokens follow the target's distribution?

A token x that is drawn from p has -log p(x) of mean H(p), its entropy, and of a variance that p gives as well. So over many
tokens the sum of what is above H has mean 0, whatever the text: a server that draws from another distribution shows a mean
that is not, and one that cuts improbable tokens off a negative one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eyas.doctor.hypothesis import Evidence, Fault, Outcome, confirmed, ruled_out, suspected, untestable

if TYPE_CHECKING:
    from eyas.doctor.examination import Examination

_NATS, _DEVIATIONS = 0.3, 6.0  # a token: far above what bf16 does to a distribution; and what chance never does
_FEWEST = 100


def sampling(exam: Examination) -> Outcome:
    """Raises UserError if the server does not answer."""
    asking = exam.asking
    assert asking is not None
    made = asking.sampled
    if any(reply.tokens is None for reply in made.replies):
        return untestable("the server gives no token ids")
    excess_N, variance_N = surprise(exam.judge.logits(made.questions, made.replies))
    count = len(excess_N)
    if count < _FEWEST:
        return untestable(f"its answers hold {count} tokens, too few to tell a distribution by")
    mean, deviations = float(excess_N.mean()), float(excess_N.sum() / variance_N.sum().clamp_min(1e-9).sqrt())
    numbers = {"tokens": count, "nats": mean, "deviations": deviations}
    text = (
        f"{count} tokens sampled at temperature 1 have {mean:+.2f} nats a token beside samples of the target ({deviations:+.1f} deviations)"
    )
    if mean > _NATS and deviations > _DEVIATIONS:
        evidence = Evidence(f"{text}: they are less likely than what it would say itself", numbers)
        remedy = "sample from the same server without speculation: if this goes, the engine's rejection sampling is wrong; report it"
        shadow = ("lossy", "target-changed", "cache-variant", "batch-variant")
        return confirmed(Fault("lossy-sampling", "server", (evidence,), remedy, 0.86, shadow=shadow))
    if mean < -_NATS and deviations < -_DEVIATIONS:
        return suspected(f"{text}: it cuts off what is unlikely (top_k, top_p or min_p of its own), or ignores the temperature", **numbers)
    return ruled_out(text, **numbers)


def surprise(answers: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each answer the tokens [N] and the logits [N, V] that they were drawn from: -log p(x) - H(p), and its variance, of all tokens."""
    excess, variance = [torch.empty(0)], [torch.empty(0)]
    for tokens_N, logits_NV in answers:
        log_NV = logits_NV.log_softmax(-1)
        p_NV = log_NV.exp()
        entropy_N = -(p_NV * log_NV).sum(-1)
        excess.append(-log_NV.gather(1, tokens_N[:, None])[:, 0] - entropy_N)
        variance.append((p_NV * log_NV**2).sum(-1) - entropy_N**2)
    return torch.cat(excess), torch.cat(variance)
