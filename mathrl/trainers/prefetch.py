"""Roll-outs one step ahead: the next step's are sampled while this step's are trained on.

They are then drawn with the weights before the update, which their log-probs belong to: the ratio of the
surrogate (or `rl.importance`, which recomputes the old ones) corrects for the difference.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from mathrl.core.types import Completion, Graded, Problem
from mathrl.learners.distributed import Backend
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.curriculum import ProblemOrder


@dataclass(frozen=True)
class Drawn:
    """One process's graded responses to its share of a step's problems.

    `problems` are their numbers in the training set, `graded` a group each (None: the prompt was too long),
    `updates` how many updates the weights that sampled had seen, `counters` the verifier's where taken.
    """

    problems: list[int]
    graded: list[list[Graded] | None]
    seconds: dict[str, float]
    updates: int
    counters: Mapping[str, float] | None = None

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Drawn":
        """Read what `to_row` gave, through JSON."""
        graded = [None if group is None else [_graded(each) for each in group] for group in row["graded"]]
        return cls(**{**row, "graded": graded})


def draw(
    sampler: Sampler,
    problems: Sequence[Problem],
    order: ProblemOrder,
    reward: RewardFunction,
    params: Rl,
    backend: Backend,
    seed: int,
    updates: int = 0,
) -> Drawn:
    """Take prompts_per_step problems, sample and grade this process's share of them."""
    sampling = Sampling(params.group_size, params.temperature, params.max_tokens)
    mine = order.take(params.prompts_per_step)[backend.rank :: backend.world]
    graded = sampler.sample([problems[index] for index in mine], sampling, reward, seed)
    return Drawn(mine, graded, dict(sampler.seconds), updates)


class Ahead:
    """Samples the next step's roll-outs in a thread of its own, where `rl.prefetch` is set.

    Nothing else may use the sampler, the problems' order or the reward between `start` and `wait`.
    """

    def __init__(self, params: Rl, backend: Backend, saved: Mapping[str, Any] | None) -> None:
        """`saved` are the values of the checkpoint that the run goes on from."""
        self.on, self.backend = params.prefetch, backend
        self.thread = ThreadPoolExecutor(1, "roll-outs") if self.on else None
        self.future: Future[Drawn] | None = None
        self.ready: Drawn | None = None
        if saved is not None and saved.get("ahead") is not None:
            self.ready = Drawn.from_row(saved["ahead"][backend.rank])

    def start(self, call: Callable[[], Drawn], reward: RewardFunction) -> None:
        """Begin with the next step's roll-outs; no effect where it is off."""

        def with_counters() -> Drawn:
            drawn = call()
            # Taken here: those of a step are of its own roll-outs.
            return Drawn(drawn.problems, drawn.graded, drawn.seconds, drawn.updates, dict(reward.counters()))

        if self.thread is not None:
            self.future = self.thread.submit(with_counters)

    def wait(self) -> float:
        """Until they are there; the seconds that took."""
        start = time.perf_counter()
        if self.future is not None:
            self.ready, self.future = self.future.result(), None
        return time.perf_counter() - start

    def take(self) -> Drawn | None:
        """The step's roll-outs, if they were sampled before."""
        ready, self.ready = self.ready, None
        return ready

    def state(self) -> dict[str, Any]:
        """For the checkpoint: those of every process."""
        if not self.on:
            return {}
        row = self.ready.to_row() if self.ready is not None else None
        shares = self.backend.gather(row)
        return {"ahead": None if row is None else shares}


def _graded(row: Mapping[str, Any]) -> Graded:
    said = row["completion"]
    completion = Completion(**{**said, "tokens": tuple(said["tokens"]), "logprobs": tuple(said["logprobs"])})
    return Graded(**{**row, "completion": completion})
