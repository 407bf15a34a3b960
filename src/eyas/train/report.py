"""What a finished run achieved, as JSON has it and in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainReport:
    """What a finished run achieved. Accuracies are uniform over the validation rows; rates in answer tokens a second."""

    steps: int
    tokens_passed: int
    seconds: float
    tokens_per_second: float
    draft_vocab_size: int
    vocab_coverage: float
    left_random: list[str]
    validation_loss: float
    validation_accuracy: list[float]
    validation_conditional_accuracy: list[float]
    validation_simulated_acceptance_length: float

    def text(self) -> str:
        """In words, for people."""
        lines = [
            f"{self.steps:,} steps, {self.tokens_passed:,} answer tokens in {self.seconds:,.0f} s ({self.tokens_per_second:,.0f} a second)",
            f"{self.draft_vocab_size:,} tokens in its vocabulary, {100 * self.vocab_coverage:.1f} % of the answers' tokens",
        ]
        if self.left_random:
            lines.append(f"started at random: {', '.join(self.left_random)}")
        if any(self.validation_accuracy) or self.validation_loss:  # else nothing was kept for validation
            lines.append(
                f"validation loss {self.validation_loss:.3f}, tokens a round as simulated {self.validation_simulated_acceptance_length:.2f}"
            )
            lines.append(f"right at each step: {_percents(self.validation_accuracy)}")
            lines.append(f"right where all steps before were: {_percents(self.validation_conditional_accuracy)}")
        return "\n".join(lines)


def _percents(shares: list[float]) -> str:
    return ", ".join(f"{100 * share:.1f} %" for share in shares)
