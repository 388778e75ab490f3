"""TRL's rollouts, graded by mathrl's reward and measured under mathrl's names.

Shapes: P groups (prompts) of G responses.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mathrl.core.types import Completion, Graded, Problem
from mathrl.learners.distributed import Ranks
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rewards.counters import merged_counters
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rollouts import metrics_by_source, rollout_groups, rollout_metrics


@dataclass
class GradedRollouts:
    """One of TRL's reward functions, which keeps what it graded until the step's metrics are read.

    `ends` are the tokens that end a response. `sampled` and `trained` count the run's tokens, at every rank all ranks'.
    """

    sampler: Sampler
    ends: Sequence[int]
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[int] | None]
    reward: RewardFunction
    params: Rl
    ranks: Ranks
    sampled: int = 0
    trained: int = 0
    graded: list[tuple[int, Graded]] = field(default_factory=list)
    seconds: float = 0.0

    def overall(
        self, completions: Sequence[str], completion_ids: Sequence[Sequence[int]], problem: Sequence[int], **_: Any
    ) -> list[float]:
        """The reward of each completion; `problem` are the numbers of the problems, a column of the data set."""
        start = time.perf_counter()
        pairs = [
            (self.problems[number], self._completion(text, ids))
            for number, text, ids in zip(problem, completions, completion_ids, strict=True)
        ]
        graded = self.sampler.grade(pairs, self.params.max_tokens, self.reward)
        self.graded += zip(map(int, problem), graded, strict=True)
        self.seconds += time.perf_counter() - start
        return [response.reward for response in graded]

    def _completion(self, text: str, ids: Sequence[int]) -> Completion:
        """Without log-probs: TRL does not keep those that it sampled with."""
        ended = ids[-1] in self.ends
        tokens, none = np.asarray(ids, np.int32), np.zeros(0, np.float32)
        return Completion(tokens=tokens, logprobs=none, text=text, finish_reason="stop" if ended else "length")

    def metrics(self) -> dict[str, float]:
        """The figures of the rollouts since the last call, of all ranks. Called at every rank."""
        shares: list[tuple[list[tuple[int, Graded]], Mapping[str, float]]]
        shares = self.ranks.gather((self.graded, self.reward.counters()))
        seconds, self.graded, self.seconds = self.seconds, [], 0.0
        graded = [pair for share, _ in shares for pair in share]
        size = self.params.group_size
        groups = [graded[first : first + size] for first in range(0, len(graded), size)]
        assert all(len({number for number, _ in group}) == 1 for group in groups), "a group of one problem"
        numbers = [group[0][0] for group in groups]
        rollouts = rollout_groups(
            numbers, [self.prompts[n] for n in numbers], [[response for _, response in group] for group in groups]
        )
        sampled = sum(group.sampled_tokens for group in rollouts)
        trained = self.params.epochs * (sampled + sum(len(group.prompt) * size for group in rollouts))
        self.sampled, self.trained = self.sampled + sampled, self.trained + trained
        return {
            **rollout_metrics(rollouts, rollouts),
            **metrics_by_source(rollouts, self.problems),
            **merged_counters([counters for _, counters in shares]),
            "trained_tokens": trained,
            "time/reward": seconds,
        }
