"""What every sampling engine is: prompts of token ids in, completions out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Completion
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model

Progress = Callable[[int], None] | None
# Mean differences of log-probs that are allowed; seen were 3e-6 in float32 and 0.03 in bfloat16.
EXACT, ROUNDED = 1e-4, 0.05


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

    rollout: Rollout

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, on_progress: Progress = None
    ) -> list[list[Completion]]:
        """`sampling.samples` completions of each prompt, in the order of the prompts.

        Equal arguments and weights give equal completions. `on_progress` gets the number of responses
        finished since its last call; all its numbers sum to len(prompts) * samples.
        """
        ...


@runtime_checkable
class SyncedEngine(RolloutEngine, Protocol):
    """An engine with weights of its own, which are sent to it after each update.

    `tolerance` is how far its log-probs may be from the trainer's on average, in nats; `dtype` is what the
    weights are rounded to before it computes with them. `shared` says that all processes of the trainer use
    the same engine, so that rank 0 alone sends.
    """

    tolerance: float
    dtype: torch.dtype
    shared: bool

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Take over all weights, by their Hugging Face names, and forget what was cached of older ones.

        Returns what the other processes are told by `follow`.
        """
        ...

    def follow(self, told: str) -> None:
        """At every process of a shared engine, once the weights are there."""
        ...

    def probe(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
    ) -> list[tuple[str, list[list[Completion]]]]:
        """`generate` from every copy of the weights, each with a name for messages."""
        ...

    def sleep(self) -> None:
        """Give memory back until the next `sync`, where the engine can."""
        ...


def end_tokens(tokenizer: Any, generation_config: Any) -> list[int]:
    """What ends a response: the tokenizer's end token and those that the model's generation config lists."""
    listed = getattr(generation_config, "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])} - {None}
    return sorted(int(end) for end in ends)


def request_seeds(seed: int, count: int) -> list[int]:
    """A seed for each request, so that what is drawn does not depend on what else is asked for.

    An engine adds the sample's number to it, so there is room below 2^63.
    """
    return [derive_seed(seed, "request", number) >> 1 for number in range(count)]


def dtype_name(rollout: Rollout, model: Model) -> str:
    """Of vLLM's weights: float32, bfloat16 or float16."""
    return model.precision if rollout.vllm.dtype == "auto" else rollout.vllm.dtype


def canary_tolerance(rollout: Rollout, model: Model, dtype: str) -> float:
    """`rollout.canary_tolerance`, or what the precisions of trainer and sampler allow."""
    return rollout.canary_tolerance or (EXACT if dtype == model.precision == "float32" else ROUNDED)
