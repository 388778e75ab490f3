"""Gradients of the policy and the critic of a fixed batch, by as many processes as WORLD_SIZE says.

Each process has a share of the groups, and the others' from them.
"""

from dataclasses import replace
from pathlib import Path

import torch

from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.advantage import Critic
from mathrl.params.loss import Masked
from mathrl.params.train import Rl
from mathrl.trainers.critic import critic_gradient, make_critic
from mathrl.trainers.policy_update import StepFigures, update_gradient
from mathrl.trainers.rollouts import repeated_shares, rollout_metrics
from tests.trainers import small

BASE = {"max_tokens": 10, "tokens_per_microbatch": 32}
SETTINGS = {
    "grpo": Rl(**BASE, kl={"coef": 0.3}),
    "gspo": Rl(**BASE, loss={"type": "gspo", "aggregation": "sequence_mean"}),
    "divergence": Rl(**BASE, advantage="distillation", loss={"type": "jsd", "top_k": 5}),
    "masked": Rl(**BASE, importance=Masked(low=0.98, high=1.02), advantage="reinforce"),
    "ppo": Rl(
        **BASE, advantage={"type": "gae", "critic": Critic(), "whiten": True}, kl={"type": "reward", "coef": 0.1}
    ),
}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    model, sampler = small.policy()
    groups = small.rollouts(model, sampler)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    ranks, reference, found = Ranks(torch.device("cpu")), small.policy(seed=5)[0], {}
    share = [
        replace(group, repeated=tuple(repeated_shares(group.responses, n=2)))
        for group in groups[ranks.rank :: ranks.world]
    ]
    gathered = [group for groups_of_rank in ranks.gather(share) for group in groups_of_rank]
    groups = sorted(gathered, key=lambda group: group.problem)
    for name, params in SETTINGS.items():
        policy = TorchLearner(model, params.optimizer, 10, ranks=ranks)
        critic = make_critic(params.critic, model, None, 10, 0, ranks) if params.critic else None
        if critic is not None:
            with torch.no_grad():
                critic.model.score.weight.fill_(0.2)
        batch, told = small.scored_batch(
            groups,
            params,
            ranks,
            model,
            reference if params.kl_coef else None,
            critic=critic.model if critic else None,
            teacher=reference,
            kl_coef=params.kl_coef,
        )
        figures = update_gradient(policy, params, batch, params.kl_coef)
        policy.reduce()
        step = StepFigures()
        step.add(figures, norm=0.0)
        row = {**step.metrics(params), **told}
        parts = [policy.flat.gradients.clone()]
        if critic is not None:
            row["critic_loss"] = critic_gradient(critic, params, batch).loss
            critic.reduce()
            parts.append(critic.flat.gradients.clone())
        found[name] = (torch.cat(parts), row)
    found["metrics"] = rollout_metrics(groups, groups)
    torch.save(found, out / f"rank-{ranks.rank}.pt")
    ranks.close()
