"""What every sampling engine is: prompts of token ids in, completions out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mathrl.core.nouns import Completion


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Example:
        Sampling(samples=16, temperature=1.0, max_tokens=64)

    `temperature` 0 is greedy. `top_p` below 1 keeps the smallest set of tokens whose probabilities sum to
    it; the log-probs are then of the renormalised distribution. While training it stays 1.
    """

    samples: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0


class RolloutEngine(Protocol):
    """Samples from a model."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Completion]]:
        """`sampling.samples` completions of each prompt, in the order of the prompts.

        Equal arguments and weights give equal completions. `on_progress` gets the number of responses
        finished since its last call; all its numbers sum to len(prompts) * samples.
        """
        ...
