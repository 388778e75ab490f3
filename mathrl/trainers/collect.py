"""A step's rollouts: sampled, graded and judged by each rank for its share, then gathered at every rank.

Shapes: P groups (prompts) of G responses.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Graded, Problem
from mathrl.learners.distributed import Ranks
from mathrl.params.advantage import Remax
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.curriculum import Order
from mathrl.trainers.response_filters import filter_groups
from mathrl.trainers.rollouts import GroupJudge, RolloutGroup, rollout_groups

SamplerIdle = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class RolloutShare:
    """One rank's graded responses to its share of a step's problems.

    `problems` are their numbers in the training set, `graded` has a group for each (None: the prompt was too long). The
    last `replaced` of them are not trained on: uniform groups of a stream, which sampled others for them.
    """

    problems: list[int]
    graded: list[list[Graded] | None]
    seconds: dict[str, float]
    replaced: int = 0


@dataclass(frozen=True)
class StepRollouts:
    """`groups` are trained on; `sampled` are all that were sampled for them, in `rounds` rounds.

    `counters` are the verifier's, of every rank and round; `seconds` are this rank's, as `Sampler.seconds`, and
    `rank_seconds` those of each rank's generation.
    """

    groups: list[RolloutGroup]
    sampled: list[RolloutGroup]
    rounds: int
    counters: list[Mapping[str, float]]
    seconds: dict[str, float]
    rank_seconds: list[float]

    @cached_property
    def tokens(self) -> int:
        return sum(group.sampled_tokens for group in self.sampled)

    def times(self, *, tools: bool) -> dict[str, float]:
        """The metrics `time/rollout`, `time/reward` and, with a tool, `time/tools`, a part of `time/rollout`.

        With several ranks also the number of the one that sampled longest, and its time over the others' median.
        """
        times = {"time/rollout": self.seconds["generation"], "time/reward": self.seconds["reward"]}
        if len(self.rank_seconds) > 1:
            *others, slowest = sorted(self.rank_seconds)
            times["time/slowest_rank"] = float(self.rank_seconds.index(slowest))
            times["time/slowest_rank_ratio"] = slowest / max(statistics.median(others), 1e-9)
        return {**times, "time/tools": self.seconds["tools"]} if tools else times


@dataclass(frozen=True)
class Collector:
    """Where the rollouts of a run come from; `prompts` are the token ids of `problems`, None if too long."""

    sampler: Sampler
    problems: Sequence[Problem]
    prompts: Sequence[Sequence[int] | None]
    order: Order
    reward: RewardFunction
    judge: GroupJudge | None
    params: Rl
    ranks: Ranks

    def sample(self, seed: int) -> RolloutShare:
        """Take the problems of a round, sample and grade this rank's share of them."""
        dynamic = self.params.dynamic_sampling
        over = dynamic.prompts_per_round if dynamic is not None else None
        taken = self.order.take(over or self.params.prompts_per_step)
        counts = self.order.sample_counts(taken, self.params.group_size)
        rank, world = self.ranks.rank, self.ranks.world
        graded = self._sample_groups(taken[rank::world], counts[rank::world], math.gcd(*counts), seed)
        return RolloutShare(taken[rank::world], graded, dict(self.sampler.seconds))

    def _sample_groups(self, numbers: list[int], counts: list[int], part: int, seed: int) -> list[list[Graded] | None]:
        """A group of `counts` responses per problem: every prompt is sampled in parts of `part` responses."""
        sampling = Sampling(part, self.params.temperature, self.params.max_tokens)
        repeated = [n for n, count in zip(numbers, counts, strict=True) for _ in range(count // part)]
        problems, prompts = [self.problems[n] for n in repeated], [self.prompts[n] for n in repeated]
        parts = iter(self.sampler.sample(problems, sampling, self.reward, seed, prompts=prompts))
        groups = [list(islice(parts, count // part)) for count in counts]
        return [
            None if group[0] is None else [response for graded in group for response in graded or ()]
            for group in groups
        ]

    def collect(
        self, seed: int, share: RolloutShare | None = None, sampler_idle: SamplerIdle = nullcontext
    ) -> StepRollouts:
        """The groups of one step, in the same order at every rank.

        With dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) further rounds follow until
        prompts_per_step groups hold right and wrong answers: that is decided by correctness, not by a reward
        with penalties for length or format in it. If the rounds run out, uniform groups fill the batch.

        `share` is the only round, where it was sampled meanwhile; then the stream has replaced uniform groups and reads
        the verifier's counters. Within `sampler_idle` a judge and greedy baselines may use the sampler.
        """
        params = self.params
        most_rounds = params.dynamic_sampling.rounds if params.dynamic_sampling is not None else 1
        groups: list[RolloutGroup] = []
        streamed: list[RolloutGroup] = []
        counters: list[Mapping[str, float]] = []
        seconds = {"generation": 0.0, "reward": 0.0, "tools": 0.0}
        rounds = 0
        while True:
            sampled = share or self.sample(derive_seed(seed, "round", rounds) if rounds else seed)
            _add(seconds, sampled.seconds)
            prompts = [self.prompts[n] for n in sampled.problems]
            judged = rollout_groups(sampled.problems, prompts, sampled.graded, params.keep_rollouts.which != "none")
            judged = self._judge(judged, seconds, sampler_idle)
            judged = filter_groups(judged, params.filters, self.sampler.tokenizer)
            read = [self.reward.counters()] if share is None else []
            gathered = self.ranks.gather((judged, read, seconds["generation"], sampled.replaced))
            rank_seconds = [generation for _, _, generation, _ in gathered]
            for rank_groups, rank_counters, _, replaced in gathered:
                groups += rank_groups
                streamed += rank_groups[: len(rank_groups) - replaced]
                counters += rank_counters
            rounds += 1
            differing = [group for group in groups if 0 < sum(group.correct) < len(group.correct)]
            if share is not None or rounds >= most_rounds or len(differing) >= params.prompts_per_step:
                break
        for group in groups:
            self.order.observe(group.problem, sum(group.correct), len(group.correct))
        trained = groups if share is None else streamed
        if params.dynamic_sampling is not None and share is None:
            differing_ids = {id(group) for group in differing}
            uniform = [group for group in groups if id(group) not in differing_ids]
            trained = (differing + uniform)[: params.prompts_per_step]
        return StepRollouts(trained, groups, rounds, counters, seconds, rank_seconds)

    def _judge(
        self, groups: list[RolloutGroup], seconds: dict[str, float], sampler_idle: SamplerIdle
    ) -> list[RolloutGroup]:
        """The groups as the judge has them, with greedy baselines where the advantage needs them."""
        greedy = isinstance(self.params.advantage, Remax)
        if self.judge is None and not greedy:
            return groups
        with sampler_idle():
            groups = self.judge(groups) if self.judge is not None else groups
            return self._with_greedy_baselines(groups, seconds) if greedy else groups

    def _with_greedy_baselines(self, groups: list[RolloutGroup], seconds: dict[str, float]) -> list[RolloutGroup]:
        """ReMax (arXiv:2310.10505): one more, greedy response per prompt, whose reward is the baseline."""
        problems = [self.problems[group.problem] for group in groups]
        graded = self.sampler.sample(problems, Sampling(1, 0.0, self.params.max_tokens), self.reward, 0)
        _add(seconds, self.sampler.seconds)
        greedy = rollout_groups([group.problem for group in groups], [group.prompt for group in groups], graded)
        greedy = self.judge(greedy) if self.judge is not None else greedy
        return [
            replace(group, baseline=baseline.rewards[0], baseline_tokens=baseline.lengths[0])
            for group, baseline in zip(groups, greedy, strict=True)
        ]


def _add(total: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name in total:
        total[name] += seconds[name]


def dev_figures(
    sampler: Sampler,
    dev: Sequence[Problem],
    reward: RewardFunction,
    params: Rl,
    ranks: Ranks,
    seed: int,
    name: str = "dev",
    samples: int | None = None,
) -> dict[str, float]:
    """Accuracy and length on the dev problems, each rank sampling its share with the weights that `sampler` has.

    Nothing if every prompt is too long. The random numbers are the same at every evaluation, so that two of
    them differ by the weights alone. `name` stands before the figures of other problems, `samples` in the place of
    rl.dev.samples.
    """
    samples = samples or params.dev.samples
    sampling = Sampling(samples, params.dev.temperature, params.max_tokens)
    share = list(dev[ranks.rank :: ranks.world])
    graded = sampler.sample(share, sampling, reward, derive_seed(seed, name, ranks.rank))
    reward.counters()  # resets them: the counters of a step are those of its rollouts
    rows = [(response.correct, response.completion.sampled_count) for group in graded if group for response in group]
    rows = [row for rank_rows in ranks.gather(rows) for row in rank_rows]
    if not rows:
        return {}
    return {
        f"{name}/problems": len(rows) / samples,
        f"{name}/accuracy": sum(correct for correct, _ in rows) / len(rows),
        f"{name}/response_length": sum(length for _, length in rows) / len(rows),
    }
