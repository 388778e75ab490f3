"""A step's roll-outs with all their numbers a token: old log-probs, advantages, the critic's targets.

Shapes: P groups of G responses, S = P G; N the tokens of all responses (groups, responses, tokens in order).
Tensors are on the CPU, the same at every process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mathrl.algorithms.advantages import distillation_advantages, group_advantages, process_advantages, whiten
from mathrl.algorithms.aggregation import spread
from mathrl.algorithms.alignment import gap_counts, gap_shares, logprob_alignment
from mathrl.algorithms.importance import importance_weights
from mathrl.algorithms.returns import discounted_returns, gae, response_sums, token_rewards
from mathrl.core.errors import UserError
from mathrl.learners.accumulate import halvable, halving
from mathrl.learners.distributed import Backend
from mathrl.learners.partition import balanced, filled
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off
from mathrl.models.packing import Group
from mathrl.models.scores import token_scores
from mathrl.params.train import Rl
from mathrl.trainers.rollouts import RolloutGroup


@dataclass(frozen=True)
class Batch:
    """`old_N` are the log-probs that ratios are against; tokens outside `kept_N` have no loss.

    They count in no denominator either. `importance_N` weighs the surrogate; `reference_N` is there with a
    KL in the loss, `values_N` and `returns_N` with a critic.
    """

    groups: Sequence[RolloutGroup]
    lengths_S: Tensor
    old_N: Tensor
    advantages_N: Tensor
    kept_N: Tensor
    importance_N: Tensor | None = None
    reference_N: Tensor | None = None
    values_N: Tensor | None = None
    returns_N: Tensor | None = None

    def part(self, chosen: Sequence[int]) -> "Batch":
        """The batch of some of the groups, by their numbers."""
        lengths = torch.split(self.lengths_S, [len(group.responses) for group in self.groups])
        ends = torch.stack([each.sum() for each in lengths]).cumsum(0).tolist()
        rows_N = torch.cat([torch.arange(ends[i - 1] if i else 0, ends[i]) for i in chosen])
        tokens = {
            field.name: getattr(self, field.name)[rows_N]
            for field in fields(self)
            if field.name.endswith("_N") and getattr(self, field.name) is not None
        }
        return Batch([self.groups[i] for i in chosen], torch.cat([lengths[i] for i in chosen]), **tokens)

    def cut(self, budget: int) -> "Batch":
        """The same responses in the same order, in groups of at most `budget` packed tokens (see `cut`)."""
        return replace(self, groups=cut(self.groups, budget))

    @property
    def counted_S(self) -> Tensor:
        """How many tokens of each response have a loss."""
        return response_sums(self.kept_N.float(), self.lengths_S).long()


def cut(groups: Sequence[RolloutGroup], budget: int) -> list[RolloutGroup]:
    """Groups of more than `budget` packed tokens are cut between responses, the prompt standing in each part.

    A response that is longer alone stands alone. Advantages are made before: they need whole groups.
    """
    out: list[RolloutGroup] = []
    for group in groups:
        if group.group.packed_tokens <= budget:
            out.append(group)
            continue
        first = 0
        for place in range(1, len(group.responses)):
            if Group(group.prompt, group.responses[first : place + 1]).packed_tokens > budget:
                out.append(group.some(first, place))
                first = place
        out.append(group.some(first, len(group.responses)))
    return out


def make_batch(
    groups: Sequence[RolloutGroup],
    params: Rl,
    backend: Backend,
    model: Any,
    reference: Any = None,
    teacher: Any = None,
    critic: Any = None,
    kl_coef: float = 0.0,
) -> tuple[Batch, dict[str, float]]:
    """Everything the updates of a step need, and figures about it.

    The trainer's own engine samples from the trained weights, so the sampled log-probs are the old ones and
    no forward pass computes them, unless `importance` asks for it.

    Raises:
        UserError: the advantage is process and no judge gave rewards of steps.
    """

    def logprobs(network: Any, whose: str) -> Tensor:
        return for_all(
            lambda packed: response_logprobs(network, packed, params.temperature)[0],
            network,
            groups,
            params.tokens_per_microbatch,
            backend,
            f"log-probs of the {whose}",
        )

    lengths_S = torch.tensor([len(response) for group in groups for response in group.responses])
    sampler_N = torch.tensor([value for group in groups for row in group.logprobs for value in row])
    kept_N = torch.ones_like(sampler_N, dtype=torch.bool)
    if params.truncated == "mask":
        cut_S = torch.tensor([each for group in groups for each in group.truncated])
        kept_N = ~spread(cut_S, lengths_S)
    old_N, importance_N, reference_N, values_N, returns_N = sampler_N, None, None, None, None
    figures: dict[str, float] = {}
    if params.importance is not None:
        given = params.importance
        old_N = logprobs(model, "policy")
        importance_N, trusted_N = importance_weights(
            old_N, sampler_N, lengths_S, given.kind, given.level, given.low, given.high
        )
        kept_N = kept_N & trusted_N
        figures["importance/mean"] = float(importance_N.mean())
        figures["importance/masked_share"] = float((~trusted_N).float().mean())
        figures["rollout/logprob_alignment"] = float(logprob_alignment(old_N, sampler_N, lengths_S).mean())
        figures |= gap_shares(gap_counts(old_N, sampler_N).tolist(), len(old_N))
    penalty_N = None
    if reference is not None:
        with adapters_off(reference):
            reference_N = logprobs(reference, "reference")
        if params.kl_in == "reward":
            gap_N = old_N - reference_N
            penalty_N = kl_coef * gap_N
            figures["kl"] = float(gap_N.mean())
    if params.advantage == "distillation":
        teacher_N = logprobs(teacher, "teacher")
        advantages_N = distillation_advantages(teacher_N, old_N)
        figures["distillation/reverse_kl"] = -float(advantages_N.mean())
    elif params.advantage == "gae":
        values_N = for_all(
            lambda packed: token_scores(critic, packed),
            critic,
            groups,
            params.tokens_per_microbatch,
            backend,
            "critic's values",
        )
        rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
        advantages_N, returns_N = gae(rewards_N, values_N, lengths_S, params.gamma, params.gae_lambda)
    else:
        advantages_N = outcome_advantages(groups, lengths_S, penalty_N, params)
    if params.whiten:
        advantages_N = whiten(advantages_N, kept_N)
    batch = Batch(
        groups,
        lengths_S,
        old_N,
        advantages_N,
        kept_N,
        importance_N,
        reference_N if params.kl_in == "loss" else None,
        values_N,
        returns_N,
    )
    return batch, figures


def outcome_advantages(
    groups: Sequence[RolloutGroup], lengths_S: Tensor, penalty_N: Tensor | None, params: Rl
) -> Tensor:
    """Advantages that need no other model, [N].

    With a penalty (the KL in the reward), a group's responses are compared by reward minus summed penalty.
    """
    kind = params.advantage
    if kind == "correct":
        correct_S = torch.tensor([float(each) for group in groups for each in group.correct])
        return spread(correct_S, lengths_S)
    if kind == "process":
        per_group = lengths_S.view(len(groups), -1)
        return torch.cat([_of_steps(group, per_group[i], params) for i, group in enumerate(groups)])
    rewards_N = token_rewards(_rewards(groups), lengths_S, penalty_N)
    if kind == "none":
        return discounted_returns(rewards_N, lengths_S, params.gamma)
    if kind == "greedy":
        returns_N = discounted_returns(rewards_N, lengths_S, params.gamma)
        baselines_S = torch.tensor([group.baseline for group in groups for _ in group.responses])
        return returns_N - spread(baselines_S, lengths_S)
    assert kind != "gae" and kind != "distillation"
    rewards_PG = _rewards(groups) if penalty_N is None else response_sums(rewards_N, lengths_S)
    advantages_PG = group_advantages(rewards_PG.view(len(groups), -1), kind, ddof=params.std_ddof, eps=params.std_eps)
    return spread(advantages_PG.flatten(), lengths_S)


def _rewards(groups: Sequence[RolloutGroup]) -> Tensor:
    return torch.tensor([reward for group in groups for reward in group.rewards])


def _of_steps(group: RolloutGroup, lengths_G: Tensor, params: Rl) -> Tensor:
    if len(group.step_rewards) != len(group.responses) or len(group.step_ends) != len(group.responses):
        raise UserError(
            "rl.advantage is process, but the roll-outs have no rewards of steps: give the run a process "
            "reward model, or set rl.advantage to group_std"
        )
    steps = [
        (reward, number, end)
        for number, (rewards, ends) in enumerate(zip(group.step_rewards, group.step_ends, strict=True))
        for reward, end in zip(rewards, ends, strict=True)
    ]
    rewards, numbers, ends = ([step[place] for step in steps] for place in range(3))
    return process_advantages(
        torch.tensor(rewards, dtype=torch.float32),
        torch.tensor(numbers, dtype=torch.long),
        torch.tensor(ends, dtype=torch.long),
        lengths_G,
        ddof=params.std_ddof,
        eps=params.std_eps,
    )


@torch.no_grad()
def for_all(
    forward: Callable[[list[Group]], Tensor],
    network: Any,
    groups: Sequence[RolloutGroup],
    budget: int,
    backend: Backend,
    part: str,
) -> Tensor:
    """`forward` of all groups, [N]: each process computes its share, every process gets all.

    The network is in eval mode meanwhile, and makes as many passes at each process as at the others. `part`
    is what memory holds then, in an error's words.
    """

    def attempt(tokens: int) -> Tensor:
        parts = cut(groups, tokens)
        sizes = [group.group.packed_tokens for group in parts]
        mine = balanced(sizes, backend.world)[backend.rank]
        own: dict[int, Tensor] = {}
        spare = [min(range(len(sizes)), key=lambda i: sizes[i])]
        with halvable(backend, part, tokens, "rl"):
            for micro, counted in backend.evened(filled(mine, [sizes[i] for i in mine], tokens), spare):
                counts = [sum(len(response) for response in parts[i].responses) for i in micro]
                values_N = forward([parts[i].group for i in micro]).float().cpu()
                if counted:
                    own |= dict(zip(micro, torch.split(values_N, counts), strict=True))
        everyone: dict[int, Tensor] = {}
        for share in backend.gather(own):
            everyone |= share
        return torch.cat([everyone[i] for i in range(len(parts))])

    training = network.training
    network.eval()
    values_N = halving(backend, budget, attempt, "rl")
    network.train(training)
    return values_N
