"""A step's roll-outs: sampled, graded and judged by each process for its share, then known to all.

Shapes: P groups (prompts) of G responses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.learners.distributed import Backend
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.curriculum import ProblemOrder
from mathrl.trainers.prefetch import Drawn, draw
from mathrl.trainers.rollouts import RolloutGroup, rollout_group

Judge = Callable[[list[RolloutGroup]], list[RolloutGroup]]


@dataclass(frozen=True)
class Collected:
    """`groups` are trained on; `everything` is what was sampled for them, in `rounds` rounds.

    `counters` are the verifier's, of every process and round; `seconds` are this process's ("generation",
    "reward").
    """

    groups: list[RolloutGroup]
    everything: list[RolloutGroup]
    rounds: int
    counters: list[Mapping[str, float]]
    seconds: dict[str, float]


def collect(
    sampler: Sampler,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int] | None],
    order: ProblemOrder,
    reward: RewardFunction,
    judge: Judge | None,
    params: Rl,
    backend: Backend,
    seed: int,
    first: Drawn | None = None,
) -> Collected:
    """The groups of one step, in the same order at every process.

    With dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) further rounds follow until prompts_per_step
    groups hold right and wrong answers: that is judged by correctness, not by a reward with penalties for
    length or format in it. If the rounds run out, groups without a difference fill the batch.

    `first` is the first round, where it was sampled ahead.
    """
    found: list[RolloutGroup] = []
    counters: list[Mapping[str, float]] = []
    seconds = {"generation": 0.0, "reward": 0.0}
    rounds = 0
    while True:
        own_seed = derive_seed(seed, "round", rounds) if rounds else seed
        drawn = draw(sampler, problems, order, reward, params, backend, own_seed) if first is None or rounds else first
        _add(seconds, drawn.seconds)
        own = [
            rollout_group(index, prompts[index] or (), group)
            for index, group in zip(drawn.problems, drawn.graded, strict=True)
            if group is not None
        ]
        own = judge(own) if judge is not None else own
        if params.advantage == "greedy":
            own = _with_greedy_baselines(own, sampler, problems, reward, judge, params, seconds)
        told = [reward.counters()] if drawn.counters is None else [drawn.counters, reward.counters()]
        shares = backend.gather((own, told))
        found += [group for share, _ in shares for group in share]
        counters += [each for _, some in shares for each in some]
        rounds += 1
        differing = [group for group in found if 0 < sum(group.correct) < len(group.correct)]
        if rounds >= params.dynamic_sampling or len(differing) >= params.prompts_per_step:
            break
    groups = found
    if params.dynamic_sampling:
        chosen = {id(group) for group in differing}
        filling = [group for group in found if id(group) not in chosen]
        groups = (differing + filling)[: params.prompts_per_step]
    for group in found:
        order.observe(group.problem, sum(group.correct) / len(group.correct))
    return Collected(groups, found, rounds, counters, seconds)


def _with_greedy_baselines(
    groups: list[RolloutGroup],
    sampler: Sampler,
    problems: Sequence[Problem],
    reward: RewardFunction,
    judge: Judge | None,
    params: Rl,
    seconds: dict[str, float],
) -> list[RolloutGroup]:
    """ReMax (arXiv:2310.10505): one more, greedy response a prompt, whose reward is the baseline."""
    chosen = [problems[group.problem] for group in groups]
    graded = sampler.sample(chosen, Sampling(1, 0.0, params.max_tokens), reward, 0)
    _add(seconds, sampler.seconds)
    greedy = [
        rollout_group(group.problem, group.prompt, one)
        for group, one in zip(groups, graded, strict=True)
        if one is not None
    ]
    greedy = judge(greedy) if judge is not None else greedy
    return [
        replace(group, baseline=one.rewards[0], baseline_tokens=len(one.responses[0]))
        for group, one in zip(groups, greedy, strict=True)
    ]


def _add(total: dict[str, float], seconds: Mapping[str, float]) -> None:
    for name in total:
        total[name] += seconds[name]
