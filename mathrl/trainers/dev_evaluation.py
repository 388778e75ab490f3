"""Accuracy on the dev problems during training."""

from collections.abc import Sequence

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.learners.distributed import Backend
from mathrl.learners.learner import Learner
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.weight_sync import WeightSync


def evaluate_dev(
    sampler: Sampler,
    dev: Sequence[Problem],
    reward: RewardFunction,
    params: Rl,
    seed: int,
    backend: Backend,
    policy: Learner,
    sync: WeightSync,
) -> dict[str, float]:
    """Accuracy and length on the dev problems, with the averaged weights where there are any.

    The same random numbers at every evaluation, so that two of them differ by the weights alone. A sampler
    with weights of its own is left with the evaluated ones.
    """
    sampling = Sampling(params.eval_samples, params.eval_temperature, params.max_tokens)
    mine = list(dev[backend.rank :: backend.world])
    dropped = sampler.dropped
    with policy.evaluated():
        sync()
        with sync.while_sampling():
            graded = sampler.sample(mine, sampling, reward, derive_seed(seed, "dev", backend.rank))
    sampler.dropped = dropped
    reward.counters()  # begins anew: the counters of a step are those of its roll-outs
    rows = [(each.correct, len(each.completion.tokens)) for group in graded if group for each in group]
    gathered = [row for share in backend.gather(rows) for row in share]
    count = max(1, len(gathered))
    return {
        "dev/accuracy": sum(correct for correct, _ in gathered) / count,
        "dev/response_length": sum(length for _, length in gathered) / count,
    }
