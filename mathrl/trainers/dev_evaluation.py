"""Accuracy on the dev problems during training."""

from collections.abc import Sequence

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.learners.distributed import Ranks
from mathrl.learners.learner import Learner
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.collect import Collector
from mathrl.trainers.weight_sync import WeightSync


def evaluate_dev(
    collector: Collector, dev: Sequence[Problem], policy: Learner, sync: WeightSync, seed: int
) -> dict[str, float]:
    """Accuracy and length on the dev problems, with the averaged weights where there are any.

    Nothing if every prompt is too long. The random numbers are the same at every evaluation, so that two of
    them differ by the weights alone. A sampler with weights of its own is left with the evaluated ones.
    """
    params, ranks, sampler = collector.params, collector.ranks, collector.sampler
    dropped = sampler.dropped
    with policy.evaluated():
        sync()
        with sync.while_sampling():
            figures = dev_figures(sampler, dev, collector.reward, params, ranks, seed)
    sampler.dropped = dropped
    return figures


def dev_figures(
    sampler: Sampler, dev: Sequence[Problem], reward: RewardFunction, params: Rl, ranks: Ranks, seed: int
) -> dict[str, float]:
    """Accuracy and length on the dev problems, each rank sampling its share with the weights that `sampler` has."""
    sampling = Sampling(params.dev.samples, params.dev.temperature, params.max_tokens)
    share = list(dev[ranks.rank :: ranks.world])
    graded = sampler.sample(share, sampling, reward, derive_seed(seed, "dev", ranks.rank))
    reward.counters()  # resets them: the counters of a step are those of its rollouts
    rows = [(response.correct, response.completion.sampled_count) for group in graded if group for response in group]
    rows = [row for rank_rows in ranks.gather(rows) for row in rank_rows]
    if not rows:
        return {}
    return {
        "dev/problems": len(rows) / params.dev.samples,
        "dev/accuracy": sum(correct for correct, _ in rows) / len(rows),
        "dev/response_length": sum(length for _, length in rows) / len(rows),
    }
