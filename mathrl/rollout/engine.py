"""The interface of sampling engines: prompts of token ids in, completions out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, FinishReason
from mathrl.models.decode import KeptKeys
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model

Progress = Callable[[int], None] | None
Prompts = Sequence[Sequence[int]]  # token ids
Groups = list[list[Completion]]  # the completions of each prompt
# What the engine has computed of a sample, to be passed back in `Sampling.kept`; None: it keeps nothing.
Keep = Callable[[], KeptKeys | None]
# Called with the numbers of a prompt and of its sample once the sample has ended, with its tokens and the reason.
Ended = Callable[[int, int, Sequence[int], FinishReason, Keep], None] | None
# Allowed mean differences of log-probs, in nats; measured: 3e-6 in float32, 0.03 in bfloat16.
EXACT, ROUNDED = 1e-4, 0.05


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled.

    Example:
        Sampling(samples=16, temperature=1.0, max_tokens=64)

    `temperature` 0 is greedy. `top_p` below 1 keeps the smallest set of tokens whose probabilities sum to
    it; the log-probs are then of the renormalised distribution. While training it stays 1. A response also ends when
    its text has come to one of the strings `stop`. `limits` are the maximum tokens of each prompt's responses, where
    they differ; `max_tokens` is then the largest of them. `kept` are keys and values of each prompt's first tokens,
    which `on_end` kept in an earlier call with the same weights: these tokens are not run again.
    """

    samples: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()
    kept: tuple[KeptKeys | None, ...] = ()

    def limit(self, prompt: int) -> int:
        """The maximum tokens of the responses to the prompt with this number."""
        return self.limits[prompt] if self.limits else self.max_tokens


class RolloutEngine(Protocol):
    """Samples from a model."""

    rollout: Rollout

    def generate(
        self, prompts: Prompts, sampling: Sampling, seed: int, on_progress: Progress = None, on_end: Ended = None
    ) -> Groups:
        """`sampling.samples` completions of each prompt, in the order of the prompts.

        Equal arguments and weights give equal completions. `on_progress` gets the number of responses
        finished since its last call; all its numbers sum to len(prompts) * samples. `on_end` is called for each sample
        while others are still sampled, from any thread, by the engines that can.
        """
        ...


@runtime_checkable
class SyncedEngine(RolloutEngine, Protocol):
    """An engine with weights of its own, which are sent to it after each update.

    `tolerance` is the allowed mean difference of its log-probs from the trainer's, in nats; `dtype` is the type that it
    rounds the weights to. With `shared` all ranks of the trainer use the same engine, and rank 0 alone sends.
    """

    tolerance: float
    dtype: torch.dtype
    shared: bool

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Take over all weights, by their Hugging Face names, and forget what was cached of older ones.

        Returns the message that the other ranks pass to `follow`.
        """
        ...

    def join(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Called at the ranks of a shared engine that do not call `sync`: take part in it, as far as they do."""
        ...

    def follow(self, sync_message: str) -> None:
        """Called at every rank of a shared engine with the message of `sync`, once the weights are there."""
        ...

    def probe(self, prompts: Prompts, sampling: Sampling, seed: int) -> list[tuple[str, Groups]]:
        """`generate` from every copy of the weights, by the copy's name in messages."""
        ...

    def sleep(self) -> None:
        """Release memory until the next `sync`, if the engine can."""
        ...


class PerProcessEngine(RolloutEngine, Protocol):
    """What the synced engines share of which each process has its own; `label` names its weights in messages."""

    label: str
    shared: bool = False

    def join(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Nothing to do: each rank calls `sync`."""
        return None

    def follow(self, sync_message: str) -> None:
        """Nothing to do: each process sends to its own engine."""
        return None

    def probe(self, prompts: Prompts, sampling: Sampling, seed: int) -> list[tuple[str, Groups]]:
        """See `SyncedEngine.probe`."""
        return [(self.label, self.generate(prompts, sampling, seed))]


def keep_nothing() -> None:
    """The `Keep` of engines that keep nothing for the caller."""
    return None


def request_seeds(seed: int, count: int) -> list[int]:
    """A seed per request, so that a response does not depend on the other requests.

    Below 2^62, since an engine adds the sample's number to it.
    """
    return [derive_seed(seed, "request", number) >> 1 for number in range(count)]


def canary_tolerance(rollout: Rollout, model: Model, dtype: str) -> float:
    """`rollout.canary_tolerance`, or the tolerance that follows from the precisions of trainer and sampler."""
    return rollout.canary_tolerance or (EXACT if dtype == model.precision == "float32" else ROUNDED)
